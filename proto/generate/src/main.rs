//! Prints `src/protocol/envoy/proto/messages.rs` and `descriptors.bin` from the files in `proto`. `make proto` runs it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::Hasher;
use std::{error::Error, fs, path::Path, process::Command};

use prost::Message;
use prost_build::Module;
use prost_types::FileDescriptorProto;
use prost_types::field_descriptor_proto::Type;
use siphasher::sip::SipHasher24;

const FILES: [&str; 6] = [
    "envoy/config/core/v3/base.proto",
    "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/type/v3/ratelimit_unit.proto",
    "grpc/health/v1/health.proto",
    "grpc/reflection/v1/reflection.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (protos, out) = (root.join("proto"), root.join("src/protocol/envoy/proto"));
    let mut set = protox::compile(FILES, [&protos])?;

    let mut described = set.clone();
    for file in &mut described.file {
        file.source_code_info = None;
    }
    fs::write(out.join("descriptors.bin"), described.encode_to_vec())?;

    set.file.iter_mut().for_each(as_bytes);
    let files = set.file.into_iter();
    let requests = files.map(|file| (Module::from_protobuf_package_name(file.package()), file));
    let services = tonic_prost_build::configure().build_client(false);
    let services = services.build_transport(false).service_generator();
    let mut config = prost_build::Config::new();
    let modules = config.service_generator(services).generate(requests.collect())?;
    let mut tree = Tree::default();
    for (module, code) in modules {
        let parts: Vec<String> = module.parts().map(str::to_owned).collect();
        if parts.first().is_none_or(|first| first != "envoy") {
            continue; // `prost-types`, `tonic-health` and `tonic-reflection` have them.
        }
        tree.at(&parts).code = linted(&code);
    }
    let mut text = format!(
        "//! Messages, printed from the files in `proto` by `make proto`. Not to be edited.\n\n\
         /// Of the files that this was printed from.\npub const DIGEST: u64 = {};\n",
        digest(&protos)?
    );
    tree.print(&mut text, "")?;
    let file = out.join("messages.rs");
    fs::write(&file, text)?;
    let formatted = Command::new("rustfmt")
        .args(["--edition", "2024"])
        .arg(file)
        .status()?;
    assert!(formatted.success(), "rustfmt failed");
    Ok(())
}

/// Has entries decoded as bytes, which are the same on the wire. A value that is not UTF-8 must not make the message
/// undecodable: Envoy lets a request pass whose check fails. Reflection still says `string`, as Envoy does.
fn as_bytes(file: &mut FileDescriptorProto) {
    let descriptors = file.message_type.iter_mut();
    let nested = descriptors
        .filter(|message| message.name() == "RateLimitDescriptor")
        .flat_map(|message| &mut message.nested_type);
    let fields = nested
        .filter(|message| message.name() == "Entry")
        .flat_map(|message| &mut message.field);
    fields.for_each(|field| field.set_type(Type::Bytes));
}

/// Over the files in their order. `tests/it/grpc_services.rs` does the same.
fn digest(protos: &Path) -> Result<u64, std::io::Error> {
    let mut hasher = SipHasher24::new();
    for file in FILES {
        hasher.write(&fs::read(protos.join(file))?);
    }
    Ok(hasher.finish())
}

/// With our lints in place of those that tonic allows itself.
fn linted(code: &str) -> String {
    let Some((before, rest)) = code.split_once("#![allow(") else {
        return code.to_owned();
    };
    let (_, after) = rest.split_once(")]").unwrap_or_default();
    let ours = "#![expect(missing_docs, reason = \"tonic prints none here\")]";
    format!("{before}{ours}{after}").replace("#[allow(non_camel_case_types)]", "")
}

/// Modules within modules, as packages nest.
#[derive(Default)]
struct Tree {
    code: String,
    children: BTreeMap<String, Tree>,
}

impl Tree {
    fn at(&mut self, parts: &[String]) -> &mut Self {
        match parts {
            [] => self,
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().at(rest),
        }
    }

    fn print(&self, text: &mut String, package: &str) -> std::fmt::Result {
        text.push_str(&self.code.replace("// @generated", ""));
        for (name, child) in &self.children {
            let package = format!(
                "{package}{}{name}",
                if package.is_empty() { "" } else { "." }
            );
            writeln!(text, "/// Package `{package}`.\npub mod {name} {{")?;
            child.print(text, &package)?;
            writeln!(text, "}}")?;
        }
        Ok(())
    }
}
