//! Substitutes `${VAR}` and `${VAR:-default}` in a value.
//!
//! It works on one value after the file has been parsed, so that the content of a variable never becomes YAML structure.
//! It does not read the environment itself: the caller passes a function.

/// Looks up an environment variable.
pub type Environment<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Replaces every reference in `text`; the error says what is wrong with one. `$$` becomes `$`, and a `$` before anything
/// else stays. As in a shell, an empty variable counts as unset where there is a default.
pub fn substitute(text: &str, environment: &Environment<'_>) -> Result<String, String> {
    let mut done = String::with_capacity(text.len());
    let mut left = text;
    while let Some((before, after)) = left.split_once('$') {
        done.push_str(before);
        left = if let Some(reference) = after.strip_prefix('{') {
            let (reference, rest) = reference
                .split_once('}')
                .ok_or("has a ${ without its }: write ${NAME}, or $$ for a $")?;
            done.push_str(&resolve(reference, environment)?);
            rest
        } else {
            done.push('$');
            after.strip_prefix('$').unwrap_or(after)
        };
    }
    done.push_str(left);
    Ok(done)
}

fn resolve(reference: &str, environment: &Environment<'_>) -> Result<String, String> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    if !is_name(name) {
        return Err(format!(
            "${{{reference}}} names no variable: write ${{NAME}} or ${{NAME:-default}}, or $$ for a $"
        ));
    }
    match (environment(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!(
            "the variable {name} is not set: set it, or write ${{{name}:-default}}"
        )),
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name
            .chars()
            .all(|each| each.is_ascii_alphanumeric() || each == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        let environment = |name: &str| match name {
            "POD" => Some("pod-7".to_owned()),
            "EMPTY" => Some(String::new()),
            "TRICKY" => Some("${POD}\n- x: 1".to_owned()),
            _ => None,
        };
        match (substitute(text, &environment), expected) {
            (Ok(done), Ok(expected)) => assert_eq!(done, expected),
            (Err(fault), Err(part)) => assert!(fault.contains(part), "{fault}"),
            (outcome, expected) => panic!("{text}: {outcome:?}, not {expected:?}"),
        }
    }

    #[test]
    fn references_are_replaced_wherever_they_stand() {
        check("${POD}", Ok("pod-7"));
        check("a-${POD}-${POD}", Ok("a-pod-7-pod-7"));
        check("no reference", Ok("no reference"));
    }

    #[test]
    fn a_default_stands_in_for_unset_and_empty() {
        check("${NO:-x}", Ok("x"));
        check("${NO:-}", Ok(""));
        check("${EMPTY:-x}", Ok("x"));
        check("${EMPTY}", Ok(""));
        check("${POD:-x}", Ok("pod-7"));
        check("${NO:-a:-b}", Ok("a:-b"));
    }

    #[test]
    fn what_a_variable_holds_is_not_looked_at_again() {
        check("${TRICKY}", Ok("${POD}\n- x: 1"));
    }

    #[test]
    fn a_dollar_can_be_written() {
        check("$$", Ok("$"));
        check("$${POD}", Ok("${POD}"));
        check("5$ $x", Ok("5$ $x"));
    }

    #[test]
    fn a_bad_reference_is_a_fault() {
        check("${NO}", Err("NO is not set"));
        check("${POD", Err("without its }"));
        check("${}", Err("names no variable"));
        check("${1A}", Err("names no variable"));
        check("${POD:x}", Err("names no variable"));
    }
}
