//! The folder `k8s`: what is in it, and what `kubectl kustomize` makes of it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use tidegate_testing::{CommandOutput, Folder};

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file, by its path below `k8s`.
pub fn read(path: &str) -> String {
    let path = root().join("k8s").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below `k8s`, by its path there, sorted.
pub fn files() -> Vec<String> {
    let (top, mut found) = (root().join("k8s"), Vec::new());
    let mut folders = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let below = path.strip_prefix(&top).unwrap();
                found.push(below.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// A folder with a `kustomization.yaml`.
#[derive(Debug)]
pub struct Kustomization {
    /// Its path below `k8s`.
    pub folder: String,
    pub content: Value,
}

impl Kustomization {
    /// Whether it can be rendered by itself.
    pub fn is_whole(&self) -> bool {
        self.content["kind"] == "Kustomization"
    }

    /// A list of it, of strings.
    pub fn names(&self, field: &str) -> Vec<&str> {
        let list = self.content[field].as_array();
        list.into_iter().flatten().map(string).collect()
    }
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

/// Every one of them, found by walking.
pub fn kustomizations() -> Vec<Kustomization> {
    let files = files().into_iter();
    let found = files.filter_map(|file| {
        let folder = file.strip_suffix("/kustomization.yaml")?.to_owned();
        let content = serde_saphyr::from_str(&read(&file)).unwrap();
        Some(Kustomization { folder, content })
    });
    let found: Vec<_> = found.collect();
    assert!(found.len() >= 8, "{found:?}");
    found
}

/// Says it past the capture of the tests' output: it is to be seen when all is well, too.
pub fn aloud(text: &str) {
    let line = format!("\n*** {text}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// The one tool that cannot be installed from the package registries.
fn kubectl() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path);
    folders.find_map(|folder| Some(folder.join("kubectl")).filter(|path| path.is_file()))
}

/// What `kubectl kustomize` prints of a folder.
pub fn kustomize(folder: &Path) -> Option<Result<String, String>> {
    let output = Command::new(kubectl()?)
        .arg("kustomize")
        .arg(folder)
        // It looks for no cluster.
        .env("KUBECONFIG", "/dev/null")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    Some(match output.status.success() && said.is_empty() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(said),
    })
}

/// Everything that can be rendered, with what it makes. `None`, and a word about it, where there is no kubectl.
pub fn renderings() -> Option<&'static [(String, String)]> {
    static RENDERED: OnceLock<Option<Vec<(String, String)>>> = OnceLock::new();
    let rendered = RENDERED.get_or_init(|| {
        if kubectl().is_none() {
            aloud(
                "NOT CHECKED: there is no kubectl here, so nothing in k8s/ was rendered. Only its plain files were \
                 checked. Install kubectl and run `make test-ops` again.",
            );
            return None;
        }
        let whole = kustomizations().into_iter().filter(Kustomization::is_whole);
        let rendered = whole.map(|Kustomization { folder, .. }| {
            let made = kustomize(&root().join("k8s").join(&folder)).unwrap();
            let text = made.unwrap_or_else(|error| panic!("k8s/{folder}: {error}"));
            (folder, text)
        });
        Some(rendered.collect())
    });
    rendered.as_deref()
}

/// One of them.
pub fn rendering(folder: &str) -> Option<&'static str> {
    let mut rendered = renderings()?.iter();
    let found = rendered.find(|(known, _)| known == folder);
    let (_, text) = found.unwrap_or_else(|| panic!("no k8s/{folder}"));
    Some(text)
}

/// A copy of `k8s`, to add to.
pub fn copy() -> Folder {
    let folder = Folder::new();
    let from = root().join("k8s");
    let ran = folder.shell(&format!("cp -r {} k8s", from.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    folder
}

/// The oldest Kubernetes that the README names, and the newest that the tool knows.
pub const OLDEST: &str = "1.30";
pub const NEWEST: &str = "1.37";

/// What the schema of this Kubernetes says of these manifests. `--strict`: a field that it does not know is a fault.
pub fn schema(version: &str, manifests: &str) -> CommandOutput {
    let tool = root().join("target/tools/kubernetes-validate");
    let program = tool.join("bin/kubernetes-validate");
    assert!(
        program.exists(),
        "kubernetes-validate is absent: run `make tools`"
    );
    let folder = Folder::new();
    folder.write("manifests.yaml", manifests);
    folder.shell(&format!(
        "PYTHONPATH={} python3 {} -k {version} --strict manifests.yaml",
        tool.display(),
        program.display()
    ))
}
