//! The Redis protocol: commands out of bytes (`frame`), checks out of commands (`decode`), answers into bytes
//! (`encode`).

pub mod decode;
pub mod encode;
pub mod frame;
