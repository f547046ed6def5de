//! The scripts that Redis runs for us. Each begins with what they share.

use std::sync::LazyLock;

/// A script and the hash that Redis knows it by.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
    /// How many times `store.timeout` its answer is waited for.
    pub(super) patience: u32,
}

impl Script {
    fn new(body: &str, patience: u32) -> Self {
        let text = [include_str!("lua/common.lua"), body].concat();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self {
            text,
            hash,
            patience,
        }
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal, $patience:literal;)*) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!($file), $patience));)*
    };
}

scripts! {
    APPLY = "lua/apply.lua", 1;
    // The check has gone its way by then, but what was taken for it can be given back.
    TAKE = "lua/take.lua", 3;
    HEARTBEAT = "lua/heartbeat.lua", 1;
    RESET = "lua/reset.lua", 1;
}
