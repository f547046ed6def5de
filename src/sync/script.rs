//! The scripts that Redis runs for us. Each begins with what they share.

use std::sync::LazyLock;

/// A script and the hash that Redis knows it by.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

impl Script {
    fn new(body: &str) -> Self {
        let text = [include_str!("lua/common.lua"), body].concat();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!($file)));)*
    };
}

scripts! {
    APPLY = "lua/apply.lua";
    TAKE = "lua/take.lua";
    BEAT = "lua/beat.lua";
    RESET = "lua/reset.lua";
}
