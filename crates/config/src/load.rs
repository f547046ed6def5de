//! Reads the files and assembles the configuration. Only this file reads files, bounded in bytes and in number.

use std::fs::{self, DirEntry, File, Metadata};
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use siphasher::sip::SipHasher13;

use super::error::{Fault, Faults, Spot};
use super::fields::{RawConfig, RawDomain};
use super::raw;
use super::reader::FieldReader;
use super::rules::{self, Domains};
use super::settings::Config;
use super::substitute::Environment;
use super::{doors, store, validate};
use tidegate_core::pure::rule::Consistency;
use tidegate_core::pure::rules::Forms;
use tidegate_core::pure::{KeyDisplay, Rule};

/// The most bytes of one file.
const CONFIG_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The most files in `rules_dir`, read or skipped.
const RULES_FILES_MAX: usize = 1_000;
/// The most folders in `rules_dir`, itself included.
const RULES_FOLDERS_MAX: usize = 100;
/// The most bytes of the host's name.
const HOST_NAME_BYTES_MAX: u64 = 256;

/// Loads the file at `path` and its `rules_dir`, which is relative to the file's folder. `environment` looks up variables.
pub fn load(path: &Path, environment: &Environment<'_>) -> Result<Config, Faults> {
    let mut files = Files::at(path);
    match files.text(path) {
        Ok(text) => assemble(&path.display().to_string(), &text, environment, Some(files)),
        Err(fault) => Err(Faults::new(vec![fault], files.sources)),
    }
}

/// Checks the configuration in `text`; faults call it `name`. It reads no file and ignores `rules_dir`.
pub fn check_text(name: &str, text: &str, environment: &Environment<'_>) -> Result<Config, Faults> {
    assemble(name, text, environment, None)
}

/// A hash of the content of all `sources`. Every change of content changes it, and so does a file that becomes
/// unreadable.
pub fn fingerprint(sources: &[PathBuf]) -> u64 {
    let Some((file, folders)) = sources.split_first() else {
        return 0;
    };
    let mut files = Files::at(file);
    // A file that cannot be read is part of the hash, too.
    let _ = files.text(file);
    for folder in folders {
        for path in files.folder(folder).unwrap_or_default().files {
            let _ = files.text(&path);
        }
    }
    files.hash.finish()
}

fn assemble(
    name: &str,
    text: &str,
    environment: &Environment<'_>,
    mut files: Option<Files>,
) -> Result<Config, Faults> {
    let sources = |files: Option<Files>| files.map(|files| files.sources).unwrap_or_default();
    let raw: RawConfig = match raw::parse(name, text) {
        Ok(raw) => raw,
        Err(fault) => return Err(Faults::new(vec![fault], sources(files))),
    };
    let reader = &mut FieldReader::new(environment);
    let root = &Spot::start(name);
    reader.unknown(root, &raw);
    let host_name = files.as_ref().and_then(|_| host_name());
    let pod_id = validate::pod_id(reader, root, &raw.pod, host_name);
    let listen = doors::listen(reader, root, &raw.listen);
    let store = store::store(reader, root, &raw.store);
    let sync = validate::sync(reader, root, &raw.sync);
    let bounds = validate::bounds(reader, root, &raw.bounds);
    let headers = validate::headers(reader, root, &raw.headers);
    let keys = validate::keys(reader, root, &raw.keys);
    if keys == KeyDisplay::Hashed
        && store
            .as_ref()
            .is_none_or(|store| store.hash_key_file.is_none())
    {
        let text =
            "without store.hash_key_file, anybody who sees a hash can find its value by guessing";
        reader.warn(&root.field("keys"), text);
    }
    let log = validate::log(reader, root, &raw.log);
    let drain = validate::drain(reader, root, &raw.drain);
    let forms = Forms {
        addresses: validate::addresses(reader, root, &raw.addresses),
        paths: validate::paths(reader, root, &raw.paths),
    };
    let defaults = rules::defaults(reader, root, &raw.defaults);
    let mut domains = Domains::new(reader, defaults, forms);
    add_domains(&mut domains, root, raw, files.as_mut());
    let rules = domains.compile();
    if rules.all().is_empty() {
        let text = "no rule is configured: every check is allowed";
        reader.warn(&root.field("rules"), text);
    }
    let shared = |rule: &Rule| rule.spec.consistency != Consistency::Local;
    if store.is_none() && !listen.grpc.is_empty() && rules.all().iter().any(shared) {
        let text = "is missing while listen.grpc is open: each pod limits alone, so that two pods admit twice the limit; \
            give the fleet's store, or set consistency: local";
        reader.warn(&root.field("store"), text);
    }
    if !reader.faults.is_empty() {
        return Err(Faults::new(
            std::mem::take(&mut reader.faults),
            sources(files),
        ));
    }
    reader.warnings.sort();
    Ok(Config {
        pod_id,
        listen,
        store,
        sync,
        bounds,
        headers,
        keys,
        log,
        drain,
        rules,
        warnings: std::mem::take(&mut reader.warnings),
        hash: files.as_ref().map_or(0, |files| files.hash.finish()),
        sources: sources(files),
    })
}

/// Adds the domains of `rules`, of the file itself if it is an envoyproxy/ratelimit file, and of `rules_dir`.
fn add_domains(
    domains: &mut Domains<'_, '_>,
    root: &Spot,
    raw: RawConfig,
    files: Option<&mut Files>,
) {
    for (spot, domain) in domains
        .reader
        .items(root, ("rules", &raw.rules))
        .unwrap_or_default()
    {
        domains.add(&spot, domain);
    }
    let folder = domains.reader.filled(root, ("rules_dir", &raw.rules_dir));
    let own = RawDomain {
        domain: raw.domain,
        matching: raw.matching,
        descriptors: raw.descriptors,
        unknown: Vec::new(),
    };
    if own.domain.found().is_some()
        || own.descriptors.found().is_some()
        || own.matching.found().is_some()
    {
        domains.add(root, &own);
    }
    let (Some(folder), Some(files)) = (folder, files) else {
        return;
    };
    let path = files.beside(Path::new(&folder.text));
    files.sources.push(path.clone());
    let listing = files.folder(&path).unwrap_or_else(|text| {
        domains.reader.fault(&folder.spot, text);
        FolderListing::default()
    });
    for (path, why) in listing.unread {
        let text = format!("{} is not read: {why}", path.display());
        domains.reader.warn(&folder.spot, text);
    }
    // One at a time, so that only one file is in memory.
    for path in listing.files {
        let name = path.display().to_string();
        match files.text(&path).and_then(|text| raw::parse(&name, &text)) {
            Ok(raw) => domains.add(&Spot::start(&name), &raw),
            Err(Fault { spot, text }) => domains.reader.fault(&spot, text),
        }
    }
}

/// The files read so far, and the hash of their content.
struct Files {
    sources: Vec<PathBuf>,
    hash: SipHasher13,
}

impl Files {
    fn at(path: &Path) -> Self {
        Self {
            sources: vec![path.to_owned()],
            hash: SipHasher13::new(),
        }
    }

    /// `path` as seen from the folder of the configuration file.
    fn beside(&self, path: &Path) -> PathBuf {
        match self.sources.first().and_then(|file| file.parent()) {
            Some(folder) => folder.join(path),
            None => path.to_owned(),
        }
    }

    /// The text of a file.
    fn text(&mut self, path: &Path) -> Result<String, Fault> {
        let spot = Spot::file(&path.display().to_string());
        let read = read(path).map_err(|error| format!("cannot be read: {error}"));
        (path, &read).hash(&mut self.hash);
        let bytes = read.map_err(|text| Fault {
            spot: spot.clone(),
            text,
        })?;
        String::from_utf8(bytes).map_err(|error| {
            let (valid, _) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
            Fault {
                spot: spot.after(&String::from_utf8_lossy(valid)),
                text: "is not UTF-8 text from here on".to_owned(),
            }
        })
    }

    /// Lists a folder of rules. Skipped files are not part of the hash, because editors create and remove them.
    fn folder(&mut self, path: &Path) -> Result<FolderListing, String> {
        let listing = FolderListing::of(path);
        listing
            .as_ref()
            .map(|listing| &listing.files)
            .hash(&mut self.hash);
        listing
    }
}

/// The files of a rules folder and its subfolders, sorted. As in envoyproxy/ratelimit, every file is read, whatever its
/// name. Hidden files are skipped: envoyproxy/ratelimit has an option for that, which a folder mounted by Kubernetes needs.
#[derive(Default)]
struct FolderListing {
    files: Vec<PathBuf>,
    /// The skipped files, with the reason.
    unread: Vec<(PathBuf, &'static str)>,
}

impl FolderListing {
    fn of(folder: &Path) -> Result<Self, String> {
        let mut listing = Self::default();
        let mut folders = vec![folder.to_owned()];
        let mut looked = 0_usize;
        while let Some(inner) = folders.pop() {
            looked = looked.saturating_add(1);
            let unreadable = |error| format!("{} cannot be read: {error}", inner.display());
            for entry in fs::read_dir(&inner).map_err(unreadable)? {
                listing.add(&entry.map_err(unreadable)?, &mut folders);
                let files = listing.files.len().saturating_add(listing.unread.len());
                let folder = folder.display();
                if files > RULES_FILES_MAX {
                    return Err(format!("{folder} holds more than {RULES_FILES_MAX} files"));
                }
                if looked.saturating_add(folders.len()) > RULES_FOLDERS_MAX {
                    let text = format!("{folder} holds more than {RULES_FOLDERS_MAX} folders");
                    return Err(text);
                }
            }
        }
        listing.files.sort();
        listing.unread.sort();
        Ok(listing)
    }

    /// Adds a file, or puts a folder into `folders`.
    fn add(&mut self, entry: &DirEntry, folders: &mut Vec<PathBuf>) {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.as_encoded_bytes();
        // A link counts as its target; a broken link is a file that cannot be read.
        let (own, kind) = (entry.file_type(), fs::metadata(&path));
        let is_folder = kind.as_ref().is_ok_and(Metadata::is_dir);
        let why = match () {
            // Kubernetes' own folders: this folder has a link to each file in them.
            () if name.starts_with(b"..") => return,
            () if name.starts_with(b".") => "its name begins with a dot",
            () if name.ends_with(b"~") => "its name ends in ~, as an editor's backup does",
            () if is_folder && own.is_ok_and(|own| own.is_symlink()) => "it is a link to a folder",
            () if is_folder => return folders.push(path),
            () if kind.is_ok_and(|kind| !kind.is_file()) => "it is not a regular file",
            () => return self.files.push(path),
        };
        self.unread.push((path, why));
    }
}

/// Reads a regular file. Anything else, such as a pipe, might never end.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let kind = fs::metadata(path)?;
    if kind.is_dir() {
        return Err(io::Error::other("it is a directory, not a file"));
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let mut bounded = File::open(path)?.take(CONFIG_BYTES_MAX.saturating_add(1));
    let length = bounded.read_to_end(&mut bytes)?;
    if u64::try_from(length).is_ok_and(|length| length <= CONFIG_BYTES_MAX) {
        return Ok(bytes);
    }
    Err(io::Error::other(format!(
        "it is larger than {CONFIG_BYTES_MAX} bytes"
    )))
}

/// The host's name from `/etc/hostname`.
fn host_name() -> Option<String> {
    let mut name = String::new();
    let mut file = File::open("/etc/hostname").ok()?.take(HOST_NAME_BYTES_MAX);
    file.read_to_string(&mut name).ok()?;
    let name = name.trim();
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    plain.then(|| name.to_owned())
}
