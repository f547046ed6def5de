//! The reference in docs/config.md: printed from the code, and each of its statements held against the code.
//!
//! What a field can be is what the fault of a wrong value says. So each field is given a wrong value, in a file that is
//! sound otherwise. `page.rs` prints what was found.

mod page;

use serde_json::{Value, json};
use tidegate_config::check_text;
use tidegate_config::reference::{FieldDefault, FieldDoc, SECTIONS, SectionDoc};

/// Sound files that have the section. What one of them allows is allowed.
fn examples(section: &SectionDoc) -> Vec<Value> {
    let limit = json!({ "requests_per_unit": 1, "unit": "second" });
    let rule = |limit: Value| {
        let descriptor = json!({ "key": "k", "value": "v*", "rate_limit": limit });
        json!({ "rules": [{ "domain": "d", "descriptors": [descriptor] }] })
    };
    let rules = |limits: &[Value]| limits.iter().cloned().map(rule).collect();
    let stores = |stores: &[Value]| {
        let file = |store: &Value| with(rule(limit.clone()), "store", store.clone());
        stores.iter().map(file).collect()
    };
    let url = "redis://h";
    match section.path {
        "" | "rules[]" => rules(&[limit]),
        "store" => stores(&[
            json!({ "url": url }),
            json!({ "url": url, "topology": "sentinel", "master": "m" }),
        ]),
        "store.tls" => stores(&[
            json!({ "url": url, "tls": {} }),
            json!({ "url": url, "tls": { "cert_file": "c", "key_file": "k" } }),
        ]),
        "rules[].descriptors[]" => rules(&[
            json!({ "requests_per_unit": 1, "unit": "second", "algorithm": "fixed_window" }),
        ]),
        "rules[].descriptors[].rate_limit" => {
            rules(&[limit, json!({ "requests_per_unit": 0, "unit": "hour" })])
        }
        "rules[].descriptors[].rate_limit.replaces[]" => rules(&[
            json!({ "requests_per_unit": 1, "unit": "second", "replaces": [{ "name": "x" }] }),
        ]),
        plain => vec![with(rule(limit), plain, json!({}))],
    }
}

/// The field in an example, as faults name it.
fn place(section: &SectionDoc, name: &str) -> String {
    let dot = if section.path.is_empty() { "" } else { "." };
    format!("{}{dot}{name}", section.path.replace("[]", "[0]"))
}

/// The map that the field at `place` stands in, and its name there.
fn holder<'v>(file: &'v mut Value, place: &str) -> (&'v mut Value, String) {
    let pointer = format!("/{}", place.replace("[0]", "/0").replace('.', "/"));
    let (map, name) = pointer.rsplit_once('/').unwrap();
    (file.pointer_mut(map).expect(place), name.to_owned())
}

fn with(mut file: Value, place: &str, value: Value) -> Value {
    let (map, name) = holder(&mut file, place);
    map[name] = value;
    file
}

fn without(mut file: Value, place: &str) -> Value {
    let (map, name) = holder(&mut file, place);
    map.as_object_mut().unwrap().remove(&name);
    file
}

/// What comes of a file, all of it: the configuration, or the faults as `(place, text)`. JSON is YAML.
fn outcome(file: &Value) -> Result<String, Vec<(String, String)>> {
    let checked = check_text("file", &file.to_string(), &|_| None);
    checked
        .map(|config| format!("{config:?}"))
        .map_err(|faults| {
            let faults = faults.iter();
            let faults = faults.map(|fault| (fault.spot.path.clone(), fault.text.clone()));
            faults.collect()
        })
}

/// Why no example allows `value` at `place`; none if one does. What goes wrong elsewhere is another field's matter; a
/// value of a wrong shape is a fault of the file as a whole.
fn refusal(section: &SectionDoc, place: &str, value: &Value) -> Option<String> {
    let mut why = None;
    for example in examples(section) {
        let field = place.trim_end_matches("[0]");
        let faults = outcome(&with(example, field, value.clone())).err();
        let at_place = |path: &str| path == place || path.is_empty();
        let found = faults
            .into_iter()
            .flatten()
            .find(|(path, _)| at_place(path));
        why = Some(found?.1)
            .filter(|text| text.starts_with("must"))
            .or(why);
    }
    Some(why.expect(place))
}

/// What the fault of a wrong value says the field must be: nothing, if any text will do.
fn must_be(section: &SectionDoc, place: &str, wrap: &dyn Fn(&str) -> Value) -> Option<String> {
    let refused = |text| refusal(section, place, &wrap(text));
    let text = refused(" ").or_else(|| refused(""))?;
    let right = text.split_once(", not ").map_or(&*text, |(right, _)| right);
    Some(right.to_owned())
}

/// What a field can be: other fields, or what [`must_be`] says of it or of its items.
enum CanBe {
    Maps(&'static str),
    Value(Option<String>),
    List(Option<String>),
}

fn can_be(section: &SectionDoc, field: &FieldDoc) -> CanBe {
    let place = place(section, field.name);
    let value = must_be(section, &place, &|text| json!(text));
    let is_map =
        |text: &Option<String>| text.as_deref() == Some("must be a map of fields (name: value)");
    if is_map(&value) {
        return CanBe::Maps("a map");
    }
    if value.as_deref() != Some("must be a list") {
        return CanBe::Value(value);
    }
    let item = must_be(section, &format!("{place}[0]"), &|text| json!([text]));
    if is_map(&item) {
        return CanBe::Maps("a list of maps");
    }
    CanBe::List(item)
}

/// The words of which a value must be one.
fn choices(must_be: &str) -> Option<Vec<&str>> {
    match must_be.strip_prefix("must be one of ") {
        Some(words) => Some(words.split(", ").collect()),
        None => (must_be == "must be true or false").then(|| vec!["true", "false"]),
    }
}

/// The least and the most that a value must be.
fn range(must_be: &str) -> Option<(&str, &str)> {
    let (_, range) = must_be.split_once("from ")?;
    let (least, most) = range.split_once(" to ")?;
    Some((least, most.split(',').next()?))
}

/// The nearest values that are not within a range, in the form of its ends.
fn beyond(least: &str, most: &str) -> Vec<String> {
    let around = |least: u64, most: u64| {
        let below = least.checked_sub(1);
        below.into_iter().chain([most + 1]).collect::<Vec<u64>>()
    };
    if let (Ok(least), Ok(most)) = (least.parse(), most.parse()) {
        let numbers = around(least, most).into_iter();
        return numbers.map(|number| number.to_string()).collect();
    }
    if let (Ok(least), Ok(most)) = (least.parse::<f64>(), most.parse::<f64>()) {
        return vec![(least * 0.999).to_string(), (most * 1.001).to_string()];
    }
    let octal = |text: &str| u64::from_str_radix(text.trim_matches('"'), 8);
    if let (Ok(least), Ok(most)) = (octal(least), octal(most)) {
        let modes = around(least, most).into_iter();
        return modes.map(|mode| format!("{mode:04o}")).collect();
    }
    let lengths = around(milliseconds(least), milliseconds(most)).into_iter();
    lengths.map(|length| format!("{length}ms")).collect()
}

fn milliseconds(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.find(char::is_alphabetic).expect(text));
    let unit = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)]
        .into_iter()
        .find(|(name, _)| *name == unit);
    number.parse::<u64>().expect(text) * unit.expect(text).1
}

/// Every field, with the section it stands in.
fn fields() -> impl Iterator<Item = (&'static SectionDoc, &'static FieldDoc)> {
    SECTIONS
        .iter()
        .flat_map(|section| section.fields.iter().map(move |field| (section, field)))
}

/// Values for a field that differ from each other, right ones among them.
fn candidates(section: &SectionDoc, field: &FieldDoc) -> Vec<Value> {
    let mut candidates = vec![
        json!("x"),
        json!([]),
        json!(["x"]),
        json!(["127.0.0.1:0"]),
        json!({}),
    ];
    if let CanBe::Value(Some(must_be)) = can_be(section, field) {
        candidates.extend(choices(&must_be).into_iter().flatten().map(Value::from));
        let ends = range(&must_be).map(|(least, most)| [least, most]);
        let ends = ends.into_iter().flatten();
        candidates.extend(ends.map(|end| Value::from(end.trim_matches('"'))));
    }
    candidates
}

#[test]
fn sections_stand_where_the_reference_says() {
    for section in SECTIONS {
        let names: Vec<&str> = section.fields.iter().map(|field| field.name).collect();
        let known = names.join(", ");
        let text = format!("unknown field \"no_such\": known here are {known}");
        let at = section.path.replace("[]", "[0]");
        for example in examples(section) {
            assert!(
                outcome(&example).is_ok(),
                "{example}: {:?}",
                outcome(&example)
            );
            let wrong = with(example, &place(section, "no_such"), json!(1));
            assert_eq!(outcome(&wrong), Err(vec![(at.clone(), text.clone())]));
        }
    }
}

#[test]
fn a_field_can_be_what_the_reference_says_up_to_the_ends() {
    let mut proven = 0;
    for (section, field) in fields() {
        let place = place(section, field.name);
        let (place, must_be, list) = match can_be(section, field) {
            CanBe::Value(Some(must_be)) => (place, must_be, false),
            CanBe::List(Some(must_be)) => (format!("{place}[0]"), must_be, true),
            CanBe::Maps(_) | CanBe::Value(None) | CanBe::List(None) => continue,
        };
        let refused = |value: &str| {
            let value = if list { json!([value]) } else { json!(value) };
            refusal(section, &place, &value)
        };
        for choice in choices(&must_be).into_iter().flatten() {
            assert_eq!(refused(choice), None, "{place}: {choice}");
            proven += 1;
        }
        if let Some((least, most)) = range(&must_be) {
            for end in [least, most] {
                assert_eq!(refused(end.trim_matches('"')), None, "{place}: {end}");
            }
            for outside in beyond(least, most) {
                let why = refused(&outside).unwrap_or_else(|| panic!("{place} can be {outside}"));
                assert!(why.starts_with(&must_be), "{place}: {outside}: {why}");
            }
            proven += 1;
        }
        if let Some((_, most)) = must_be.split_once("at most ") {
            let most: usize = most.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(refused(&"a".repeat(most)), None, "{place}");
            assert!(refused(&"a".repeat(most + 1)).is_some(), "{place}");
            proven += 1;
        }
    }
    assert!(proven > 60, "only {proven} statements were put to the test");
}

#[test]
fn without_a_field_there_is_what_the_reference_says() {
    for (section, field) in fields() {
        let place = place(section, field.name);
        let left_out: Vec<Value> = examples(section)
            .into_iter()
            .map(|example| without(example, &place))
            .collect();
        let sound: Vec<&Value> = left_out
            .iter()
            .filter(|file| outcome(file).is_ok())
            .collect();
        match field.default {
            FieldDefault::Required => {
                for file in &left_out {
                    let faults = outcome(file).expect_err(&place);
                    let missing = |(at, text): &(String, String)| {
                        *at == place && text.starts_with("is missing")
                    };
                    assert!(faults.iter().any(missing), "{place}: {faults:?}");
                }
                continue;
            }
            FieldDefault::Value(default) => {
                let default: Value = serde_saphyr::from_str(default).expect(&place);
                for file in &sound {
                    let said = with((*file).clone(), &place, default.clone());
                    assert_eq!(outcome(&said), outcome(file), "{place}");
                }
                // Another value makes a difference: the comparison is one.
                let differs = candidates(section, field).into_iter().any(|other| {
                    refusal(section, &place, &other).is_none()
                        && outcome(&with(sound[0].clone(), &place, other)) != outcome(sound[0])
                });
                assert!(differs, "{place}");
            }
            // Of several words or numbers one always holds: which, the reference has to say.
            FieldDefault::Absent => {
                if let CanBe::Value(Some(must_be)) = can_be(section, field) {
                    let several = choices(&must_be).is_some() || range(&must_be).is_some();
                    assert!(!several || place == "match", "{place}");
                }
            }
            FieldDefault::Described(_) => {}
        }
        assert!(!sound.is_empty(), "{place} is needed");
    }
}

/// All that is `Like` something else. The pod's name is: `a_pod_without_an_id_takes_the_first_name_there_is`.
#[test]
fn a_rule_that_says_nothing_is_like_the_defaults_and_bursts_like_its_requests() {
    let defaults = SECTIONS
        .iter()
        .find(|section| section.path == "defaults")
        .unwrap();
    let mut alike = vec!["pod.id".to_owned()];
    for (section, field) in fields().filter(|(section, _)| section.path.starts_with("rules[].")) {
        let Some(of) = defaults.fields.iter().find(|of| of.name == field.name) else {
            continue;
        };
        let place = place(section, field.name);
        let CanBe::Value(Some(must_be)) = can_be(defaults, of) else {
            panic!("{place}");
        };
        for choice in choices(&must_be).expect(&place) {
            let file = with(
                examples(section)[0].clone(),
                "defaults",
                json!({ field.name: choice }),
            );
            let silent = without(file, &place);
            let said = with(silent.clone(), &place, json!(choice));
            assert_eq!(outcome(&silent), outcome(&said), "{place}: {choice}");
            assert!(outcome(&silent).is_ok(), "{place}: {choice}");
        }
        alike.push(place);
    }
    let rate = "rules[0].descriptors[0].rate_limit";
    let file = json!({ "rules": [{ "domain": "d", "descriptors": [{ "key": "k", "rate_limit":
        { "requests_per_unit": 7, "unit": "second" } }] }] });
    let burst = |burst| outcome(&with(file.clone(), &format!("{rate}.burst"), json!(burst)));
    assert_eq!(burst(7), outcome(&file));
    assert_ne!(burst(6), outcome(&file));
    alike.push(format!("{rate}.burst"));

    let field = fields().filter(|(_, field)| matches!(field.default, FieldDefault::Described(_)));
    let mut field: Vec<String> = field
        .map(|(section, field)| place(section, field.name))
        .collect();
    field.sort();
    alike.sort();
    assert_eq!(field, alike);
}
