//! A folder of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::{CommandOutput, tidegate_binary};

/// A new folder, removed at the end with all that is in it.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Default for Folder {
    fn default() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Short: the path of a Unix socket may have a hundred bytes.
        let name = format!("tidegate-it-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Folder {
    pub fn new() -> Self {
        Self::default()
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Writes beside and renames over, as careful writers do.
    pub fn replace(&self, name: &str, text: &str) {
        self.write(".new", text);
        fs::rename(self.path(".new"), self.path(name)).unwrap();
    }

    /// `tidegate` with these arguments, in this folder, without variables of ours in its environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(tidegate_binary());
        command.args(arguments).current_dir(&self.0);
        let ours = |name: &str| {
            name.starts_with("TIDEGATE_") || ["POD_NAME", "HOSTNAME", "REDIS_URL"].contains(&name)
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Runs `tidegate` to its end.
    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        CommandOutput::of(self.command(arguments).output().unwrap())
    }

    /// Runs a line of shell to its end.
    pub fn shell(&self, line: &str) -> CommandOutput {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(&self.0);
        CommandOutput::of(command.output().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
