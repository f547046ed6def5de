//! Prints the reference into docs/config.md. `UPDATE=1` writes it (`make docs`).

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use tidegate_config::check_text;
use tidegate_config::reference::{FieldDefault, FieldDoc, SECTIONS, SectionDoc};
use tidegate_testing::Folder;

use super::{CanBe, can_be, choices, place};

const BEGIN: &str = "<!-- Printed by `make docs` from here -->\n";
const END: &str = "<!-- to here. -->\n";

/// The variables that a configuration asks for, in the order in which it does.
fn variables(file: &str) -> Vec<String> {
    let asked = RefCell::new(Vec::new());
    let checked = check_text("file", file, &|name| {
        asked.borrow_mut().push(name.to_owned());
        None
    });
    assert!(checked.is_ok(), "{file}");
    asked.into_inner()
}

/// The field that a variable speaks of, if it is listened to beside `file`.
fn field_of(variable: &str, file: &str) -> Option<String> {
    let wrong = |name: &str| (name == variable).then(|| " ".to_owned());
    let faults = check_text("file", file, &wrong).err()?;
    let fault = faults.iter().find(|fault| &*fault.spot.file == variable);
    fault.map(|fault| fault.spot.path.clone())
}

/// A file that gives every field that a variable speaks of.
const ALL_GIVEN: &str = r#"{ "rules": [], "pod": { "id": "p" }, "store": { "url": "redis://h" },
    "listen": { "http": [], "grpc": [], "resp": [], "metrics": [], "admin": [] },
    "log": { "level": "warn", "format": "json" } }"#;

/// Flags of `run` that override the file, with the variables that they stand for.
fn flags(folder: &Folder) -> Vec<(String, String)> {
    let help = folder.run(&["run", "--help"]).stdout;
    let (_, flags) = help.split_once("Override the file:\n").expect("flags");
    let flags = flags
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty());
    // A fault of the file's own: whatever the flag says, nothing is started.
    folder.write("faulty.yaml", "drain: never\nrules: []\n");
    let stands_for = |flag: &str| {
        let ran = folder.run(&["run", "--config", "faulty.yaml", flag, " "]);
        let mut names = ran.stderr.lines().filter_map(|line| line.split_once(": "));
        let found = names.find(|(name, _)| !name.starts_with("faulty.yaml"));
        let (variable, _) = found.unwrap_or_else(|| panic!("{flag}: {ran:?}"));
        (flag.to_owned(), variable.to_owned())
    };
    let names = flags.map(|line| line.split(' ').next().unwrap());
    names.map(stands_for).collect()
}

/// Flags that have a variable, of every command: the variable, the flags, their default, and what they say.
fn flags_with_variables(folder: &Folder) -> Vec<[String; 4]> {
    let help = folder.run(&["--help"]).stdout;
    let (_, commands) = help.split_once("Commands:\n").expect("commands");
    let commands = commands
        .lines()
        .map_while(|line| line.trim().split(' ').next());
    let mut found: Vec<[String; 4]> = Vec::new();
    for command in commands.take_while(|command| !command.is_empty()) {
        let help = folder.run(&[command, "--help"]).stdout;
        for line in help.lines().filter(|line| line.contains("[env: ")) {
            let between = |from: &str, to: &str| {
                let (_, rest) = line.split_once(from)?;
                Some(rest.split_once(to)?.0.trim().to_owned())
            };
            let flag = line.trim().split(' ').next().unwrap();
            let flag = format!("`{command} {flag}`");
            let variable = between("[env: ", "=]").expect(line);
            if let Some([_, flags, ..]) = found.iter_mut().find(|[name, ..]| *name == variable) {
                *flags += &format!(", {flag}");
                continue;
            }
            let default = between("[default: ", "]").map(|default| format!("`{default}`"));
            let what = between("> ", " [env").expect(line);
            found.push([variable, flag, default.unwrap_or_default(), what]);
        }
    }
    found
}

/// A field's cell: what it can be, in the words of the fault.
fn print_can_be(section: &SectionDoc, field: &FieldDoc) -> String {
    let print = |must_be: Option<String>| match must_be {
        None => "text".to_owned(),
        Some(text) if text == "must not be empty" => "text, not empty".to_owned(),
        Some(text) => match (choices(&text), text.strip_prefix("must be ")) {
            (Some(choices), _) => {
                let choices: Vec<String> =
                    choices.iter().map(|choice| format!("`{choice}`")).collect();
                choices.join(", ")
            }
            (None, Some(right)) => right.to_owned(),
            (None, None) => text,
        },
    };
    match can_be(section, field) {
        CanBe::Value(must_be) => print(must_be),
        CanBe::List(must_be) => format!("a list: {}", print(must_be)),
        CanBe::Maps(shape) => {
            let path = place(section, field.name).replace("[0]", "[]");
            let items = format!("{path}[]");
            let section = SECTIONS
                .iter()
                .find(|section| [&*path, &*items].contains(&section.path));
            let anchor = section.map(|section| section.path.replace(['[', ']', '.'], ""));
            anchor.map_or(shape.to_owned(), |anchor| format!("[{shape}](#{anchor})"))
        }
    }
}

fn print_section(section: &SectionDoc) -> String {
    let mut page = match section.path {
        "" => "### The file\n".to_owned(),
        path => format!("### `{path}`\n"),
    };
    if !section.about.is_empty() {
        page += &format!("{}\n\n", section.about.trim());
    }
    page += "| field | can be | without it | |\n|---|---|---|---|\n";
    for field in section.fields {
        let without = match field.default {
            FieldDefault::Value(default) => format!("`{default}`"),
            FieldDefault::Described(other) => other.to_owned(),
            FieldDefault::Absent => String::new(),
            FieldDefault::Required => "a fault".to_owned(),
        };
        let can_be = print_can_be(section, field);
        page += &format!(
            "| `{}` | {can_be} | {without} | {} |\n",
            field.name,
            field.about.trim()
        );
    }
    page + "\n"
}

fn print_variables() -> String {
    let folder = Folder::new();
    let mut page = "### Variables and flags\n\
        These speak of fields. An empty one is none; addresses are separated by commas.\n\n\
        | variable | flag of `run` | field | |\n|---|---|---|---|\n"
        .to_owned();
    let mut flags = flags(&folder);
    for variable in variables("rules: []") {
        let field = field_of(&variable, "rules: []").expect(&variable);
        let order = match field_of(&variable, ALL_GIVEN) {
            Some(_) => "beats the file",
            None => "if the file gives none",
        };
        let flag = flags.iter().position(|(_, of)| *of == variable);
        let flag = flag.map_or(String::new(), |at| format!("`{}`", flags.remove(at).0));
        page += &format!("| `{variable}` | {flag} | `{field}` | {order} |\n");
    }
    assert_eq!(flags, [], "flags for variables that nothing asks for");
    page +=
        "\nThese are the commands' own.\n\n| variable | flag | without it | |\n|---|---|---|---|\n";
    for [variable, flag, default, what] in flags_with_variables(&folder) {
        page += &format!("| `{variable}` | {flag} | {default} | {what} |\n");
    }
    page
}

#[test]
fn the_reference_is_printed_from_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/config.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect(BEGIN);
    let (_, after) = rest.split_once(END).expect(END);
    let sections: String = SECTIONS.iter().map(print_section).collect();
    let printed = format!("{before}{BEGIN}{sections}{}{END}{after}", print_variables());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &printed).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap();
    let differs = page
        .lines()
        .zip(printed.lines())
        .find(|(is, ought)| is != ought);
    assert_eq!(differs, None, "run `make docs`");
    assert_eq!(page.len(), printed.len(), "run `make docs`");
}
