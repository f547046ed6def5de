//! The configuration of a sidecar under test, and how it is started.

use super::Sidecar;
use crate::folder::Folder;
use crate::process::CommandOutput;
use crate::wait::SOON;

/// A sidecar to start. Each part is YAML.
#[derive(Debug)]
pub struct SidecarSetup {
    pub folder: Folder,
    rules: String,
    top: String,
    listen: String,
    bounds: String,
    file: String,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

impl SidecarSetup {
    /// A daemon with these domains: a list as it stands below `rules:`.
    pub fn rules(rules: &str) -> Self {
        Self {
            folder: Folder::new(),
            rules: rules.to_owned(),
            top: "log: { format: json }".to_owned(),
            listen: LISTEN.to_owned(),
            bounds: "keys_max: 10000".to_owned(),
            file: "sidecar.yaml".to_owned(),
            arguments: Vec::new(),
            variables: Vec::new(),
        }
    }

    /// In this folder instead of a new one.
    pub(super) fn in_folder(self, folder: Folder) -> Self {
        Self { folder, ..self }
    }

    /// Lines at the top level, in place of the one that sets the log's format.
    pub fn top(self, top: &str) -> Self {
        Self {
            top: top.to_owned(),
            ..self
        }
    }

    /// Another `listen`, as a flow map without its braces.
    pub fn listen(self, listen: &str) -> Self {
        Self {
            listen: listen.to_owned(),
            ..self
        }
    }

    /// More fields of `listen`.
    pub fn listen_also(mut self, more: &str) -> Self {
        self.listen += ", ";
        self.listen += more;
        self
    }

    /// More fields of `bounds`.
    pub fn bounds(mut self, more: &str) -> Self {
        self.bounds += ", ";
        self.bounds += more;
        self
    }

    /// Another path of the configuration, relative to the folder.
    pub fn file(self, file: &str) -> Self {
        Self {
            file: file.to_owned(),
            ..self
        }
    }

    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The configuration with these rules in place of its own.
    pub fn with(&self, rules: &str) -> String {
        let Self {
            top,
            listen,
            bounds,
            ..
        } = self;
        format!("listen: {{ {listen} }}\n{top}\nbounds: {{ {bounds} }}\nrules:\n{rules}\n")
    }

    pub fn yaml(&self) -> String {
        self.with(&self.rules)
    }

    /// Writes the configuration and starts.
    pub fn start(self) -> Sidecar {
        self.folder.write(&self.file, &self.yaml());
        self.start_as_is()
    }

    /// Starts with what is in the folder.
    pub fn start_as_is(self) -> Sidecar {
        let mut sidecar = self.spawn();
        sidecar.wait_until_ready();
        sidecar
    }

    /// Writes the configuration and starts a daemon that has to end by itself.
    pub fn fail(self) -> (CommandOutput, Folder) {
        self.folder.write(&self.file, &self.yaml());
        let mut sidecar = self.spawn();
        let code = sidecar.wait(SOON).code();
        let ran = CommandOutput {
            code,
            stdout: sidecar.stdout.text(),
            stderr: sidecar.stderr.text(),
        };
        let folder = sidecar.setup.take().unwrap().folder;
        (ran, folder)
    }

    fn spawn(self) -> Sidecar {
        let mut command = self.folder.command(&["--config", &self.file]);
        command.args(&self.arguments);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Sidecar::spawn(command, self)
    }
}

/// Every door on a port that the system chooses, and HTTP on a Unix socket too.
pub const LISTEN: &str =
    r#"http: ["127.0.0.1:0", "unix:t.sock"], metrics: ["127.0.0.1:0"], admin: ["127.0.0.1:0"]"#;
