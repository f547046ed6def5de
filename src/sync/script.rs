//! The Lua scripts that Redis runs. Each text begins with `common.lua`.

use std::sync::LazyLock;

/// A script, and the hash by which Redis finds it.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
    /// The longest wait for its answer, in multiples of `store.timeout`.
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
    // By then the check is over, but the cells that were taken for it can be given back.
    TAKE = "lua/take.lua", 3;
    HEARTBEAT = "lua/heartbeat.lua", 1;
    RESET = "lua/reset.lua", 1;
}
