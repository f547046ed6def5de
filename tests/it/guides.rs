//! The guides: each block of code in `docs/guides/clients.md` is run as it stands there, against a real daemon.
//!
//! Only the socket's path is another, and where an answer is expected there is more time for it: this machine may be
//! busy. The tools are real too; one that is absent fails its test.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use serde_json::Value;
use tidegate_testing::{CommandOutput, Folder, SidecarSetup};

/// Where the guides have the socket.
const SOCKET: &str = "/run/tidegate/tidegate.sock";

/// A fenced block of a page.
#[derive(Debug)]
pub struct Block {
    pub language: String,
    pub text: String,
}

/// Every guide, as its path from the root and its text.
pub fn pages() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides");
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let text = fs::read_to_string(&path).unwrap();
            (format!("docs/guides/{name}"), text)
        })
        .collect();
    pages.sort();
    pages
}

/// The blocks of a page. One within a list loses the list's indent.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some((indent, language)) = line.split_once("```") else {
            continue;
        };
        if !indent.trim().is_empty() {
            continue;
        }
        let within = lines
            .by_ref()
            .take_while(|line| !line.trim_start().starts_with("```"));
        let text = within.map(|line| format!("{}\n", line.strip_prefix(indent).unwrap_or(line)));
        blocks.push(Block {
            language: language.to_owned(),
            text: text.collect(),
        });
    }
    blocks
}

/// The blocks of a guide in one language.
pub fn guide(name: &str, language: &str) -> Vec<String> {
    let pages = pages();
    let path = format!("docs/guides/{name}");
    let (_, page) = pages.iter().find(|(known, _)| *known == path).unwrap();
    let blocks = blocks(page).into_iter();
    let blocks = blocks.filter(|block| block.language == language);
    blocks.map(|block| block.text).collect()
}

/// A command that has to be there.
pub fn tool(program: &str) -> Command {
    let known = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps servers where not every user looks.
    let mut folders = std::env::split_paths(&known).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.find_map(|folder| Some(folder.join(program)).filter(|path| path.is_file()));
    Command::new(found.unwrap_or_else(|| panic!("{program} is absent: run make tools")))
}

/// Runs to its end what has to succeed.
fn run(mut command: Command) -> CommandOutput {
    let output = command.output().unwrap();
    let ran = CommandOutput {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    };
    assert_eq!(ran.code, Some(0), "{command:?}: {ran:?}");
    ran
}

/// Something that listens where the daemon did. It gives each connection one answer and closes it, unannounced; without
/// an answer it leaves them waiting.
fn stand_in(path: &Path, answer: Option<&'static [u8]>) {
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        let mut waiting = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            match answer {
                Some(answer) => {
                    // A request is short: one read has it all, or the client sends it in bits.
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(answer);
                }
                None => waiting.push(stream),
            }
        }
    });
}

/// What the blocks of a language are run with.
struct Language {
    name: &'static str,
    file: &'static str,
    /// The timeout as the block has it, and a longer one.
    timeouts: (&'static str, &'static str),
}

/// The block of this language, made into a command by `make`, asks three times.
fn check(language: &Language, make: impl Fn(&Folder) -> Command) {
    let [rules, ..] = &guide("clients.md", "yaml")[..] else {
        panic!("no rules");
    };
    let (_, rules) = rules.split_once("rules:\n").unwrap();
    let sidecar = SidecarSetup::rules(rules).start();
    let socket = sidecar.folder().path("t.sock");
    let [block] = &guide("clients.md", language.name)[..] else {
        panic!("not one block of {}", language.name);
    };
    let (hasty, patient) = language.timeouts;
    for part in [SOCKET, hasty] {
        assert_eq!(block.matches(part).count(), 1, "{part}: {block}");
    }
    let block = block.replace(SOCKET, socket.to_str().unwrap());
    let asks = |folder: &Folder, block: &str| {
        folder.write(language.file, block);
        make(folder)
    };
    let ran = run(asks(sidecar.folder(), &block.replace(hasty, patient)));
    assert_eq!(ran.stdout, "allowed\nallowed\ndenied\n", "{}", ran.stderr);
    assert_eq!(ran.stderr, "");
    // Whatever goes wrong, it lets pass and says so, each time.
    let gone = sidecar.kill();
    let passes = |why: &str, command| {
        let ran = run(command);
        let told = ran.stderr;
        assert_eq!(ran.stdout, "allowed\n".repeat(3), "{why}: {told}");
        assert_eq!(told.matches("tidegate: ").count(), 3, "{why}: {told}");
        told
    };
    stand_in(
        &socket,
        Some(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}"),
    );
    let told = passes("it does not understand", make(&gone.folder));
    assert_eq!(told.matches("400").count(), 3, "{told}");
    let command = asks(&gone.folder, &block);
    stand_in(&socket, None);
    passes("it does not answer", again(&command));
    fs::remove_file(&socket).unwrap();
    passes("it is gone", command);
}

/// The same command once more.
fn again(command: &Command) -> Command {
    let mut again = Command::new(command.get_program());
    again.args(command.get_args());
    again
}

/// A command on a file of the folder.
fn on(mut command: Command, folder: &Folder, file: &str) -> Command {
    command.arg(folder.path(file));
    command
}

#[test]
fn python_asks() {
    let language = Language {
        name: "python",
        file: "ask.py",
        timeouts: ("TIMEOUT = 0.25", "TIMEOUT = 10"),
    };
    check(&language, |folder| on(tool("python3"), folder, "ask.py"));
}

#[test]
fn node_asks() {
    let language = Language {
        name: "js",
        file: "ask.js",
        timeouts: ("TIMEOUT = 250", "TIMEOUT = 10000"),
    };
    check(&language, |folder| on(tool("node"), folder, "ask.js"));
}

#[test]
fn go_asks() {
    let language = Language {
        name: "go",
        file: "ask.go",
        timeouts: ("250 * time.Millisecond", "10 * time.Second"),
    };
    check(&language, |folder| {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let mut build = tool("go");
        // Unoptimised: the standard library, compiled once, takes a third less.
        build.args(["build", "-gcflags=all=-N -l", "-o"]);
        build.arg(folder.path("ask"));
        build.arg(folder.path("ask.go"));
        // Nothing is fetched, and no C compiler is needed.
        build.envs([
            ("GO111MODULE", "off"),
            ("GOTOOLCHAIN", "local"),
            ("CGO_ENABLED", "0"),
        ]);
        build.env("GOFLAGS", "");
        build.env("GOCACHE", kept.join("go-cache"));
        build.env("GOPATH", kept.join("go-path"));
        run(build);
        Command::new(folder.path("ask"))
    });
}

#[test]
fn rust_asks() {
    let language = Language {
        name: "rust",
        file: "ask.rs",
        timeouts: ("from_millis(250)", "from_millis(10_000)"),
    };
    check(&language, |folder| {
        let mut build = tool("rustc");
        build.args(["--edition", "2024", "-D", "warnings", "-o"]);
        build.arg(folder.path("ask")).arg(folder.path("ask.rs"));
        run(build);
        Command::new(folder.path("ask"))
    });
}

#[test]
fn curl_asks() {
    tool("curl");
    let language = Language {
        name: "sh",
        file: "ask.sh",
        timeouts: ("--max-time 0.25", "--max-time 10"),
    };
    check(&language, |folder| on(tool("sh"), folder, "ask.sh"));
}

/// What is said to be YAML or JSON is.
#[test]
fn data_is_well_formed() {
    let mut seen = 0;
    for (path, page) in pages() {
        for Block { language, text } in blocks(&page) {
            let wrong = match language.as_str() {
                "yaml" => serde_saphyr::from_multiple::<Value>(&text)
                    .err()
                    .map(|error| error.to_string()),
                "json" => serde_json::from_str::<Value>(&text)
                    .err()
                    .map(|error| error.to_string()),
                _ => continue,
            };
            seen += 1;
            assert!(
                wrong.is_none(),
                "{path}: {}\n{text}",
                wrong.unwrap_or_default()
            );
        }
    }
    assert!(seen >= 4, "the guides show no data");
}

/// A configuration of ours, told from those of others by what stands at its left edge.
pub fn is_ours(block: &Block) -> bool {
    let ours = ["rules:", "listen:", "store:", "domain:", "defaults:"];
    let mut lines = block.text.lines();
    block.language == "yaml" && lines.any(|line| ours.iter().any(|name| line.starts_with(name)))
}

/// Our configurations in the guides pass `tidegate validate`, the command.
#[test]
fn configurations_are_valid() {
    let folder = Folder::new();
    // What a guide takes from elsewhere: the files of envoyproxy/ratelimit.
    std::fs::create_dir(folder.path("rules")).unwrap();
    folder.write("rules/config.yaml", "domain: elsewhere\n");
    let mut seen = 0;
    for (path, page) in pages() {
        for block in blocks(&page).iter().filter(|block| is_ours(block)) {
            seen += 1;
            folder.write("sidecar.yaml", &block.text);
            let ran = folder.run(&["validate", "sidecar.yaml"]);
            assert_eq!(ran.code, Some(0), "{path}:\n{}\n{ran:?}", block.text);
        }
    }
    assert!(seen >= 2, "the guides show no configuration of ours");
}
