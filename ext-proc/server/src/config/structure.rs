//! The shape of a file against its JSON Schema: unknown, missing and ill-typed keys and values out of range.
//!
//! The schema comes from the serde types, so the document that users read, the checks, and the reading itself cannot
//! disagree. The texts are ours: a schema validator's own messages don't say what to do.

use jsonschema::error::ValidationErrorKind as Kind;
use jsonschema::{ValidationError, Validator};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::errors::Collector;
use super::yaml::{Document, child};

/// JSON Schema of `T`, every part written out where it is used.
pub(crate) fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Reports everything in `document` that `T` cannot hold.
pub(crate) fn check<T: JsonSchema>(document: &Document, errors: &mut Collector<'_>) {
    let schema = schema_of::<T>();
    match Validator::new(&schema) {
        Ok(validator) => {
            for error in validator.iter_errors(&document.value) {
                report(&schema, document, &error, errors);
            }
        }
        // A test holds every schema valid; reading still checks types.
        Err(error) => tracing::error!(%error, "the built-in schema is not valid"),
    }
}

/// Reads the part at `pointer`, or the default where the file has none. `None` where an error was or is reported.
pub(crate) fn read<T: DeserializeOwned>(
    document: &Document,
    pointer: &str,
    absent: Option<T>,
    errors: &mut Collector<'_>,
) -> Option<T> {
    let Some(value) = document.value.pointer(pointer) else { return absent };
    if errors.touches(pointer) {
        return None;
    }
    match T::deserialize(value) {
        Ok(part) => Some(part),
        Err(error) => {
            errors.value(document, pointer, error.to_string(), "see docs/configuration.md");
            None
        }
    }
}

fn report(schema: &Value, document: &Document, error: &ValidationError<'_>, errors: &mut Collector<'_>) {
    let at = error.instance_path().as_str();
    let rule = error.schema_path().as_str();
    let holder = rule.rsplit_once('/').map_or("", |(holder, _)| holder);
    let mut value = |what: String, advice: String| errors.value(document, at, what, advice);
    match error.kind() {
        Kind::AdditionalProperties { unexpected } => {
            let known = known_keys(schema.pointer(holder));
            for key in unexpected {
                errors.key(document, &child(at, key), "unknown key", suggestion(key, &known));
            }
        }
        Kind::Required { property } => {
            let key = property.as_str().unwrap_or_default();
            let missing = child(at, key);
            errors.key(document, &missing, "is missing", "add it; docs/configuration.md has an example");
        }
        Kind::Type { .. } => {
            let wanted = schema.pointer(rule).map_or_else(String::new, wanted_types);
            value(
                format!("is {}, not {wanted}", described(error.instance())),
                type_advice(error.instance(), &wanted),
            );
        }
        Kind::Enum { .. } | Kind::OneOfNotValid { .. } | Kind::AnyOf { .. } | Kind::Constant { .. } => {
            let known = choices(schema.pointer(rule), schema.pointer(holder));
            let given = error.instance().as_str().unwrap_or_default();
            let advice = suggestion(given, &known);
            value(format!("is {}, which is not a choice here", described(error.instance())), advice);
        }
        Kind::Minimum { .. } | Kind::Maximum { .. } => {
            let whole = is_whole(schema.pointer(holder));
            // A number with a fraction is out of range too, but its type was already reported.
            if !(whole && error.instance().is_f64()) {
                let what = format!("is {}, which is out of range", described(error.instance()));
                let number = if whole { "whole number" } else { "number" };
                value(what, format!("use a {number} {}", range(schema.pointer(holder))));
            }
        }
        Kind::MinItems { limit: 1 } => value("is an empty list".to_owned(), "add an entry".to_owned()),
        Kind::MinItems { limit } => {
            value(format!("has fewer than {limit} entries"), "add an entry".to_owned());
        }
        Kind::MaxItems { limit } | Kind::MaxProperties { limit } => {
            value(format!("has more than {limit} entries"), "remove entries".to_owned());
        }
        Kind::MinLength { limit } => {
            value(format!("is shorter than {limit} characters"), "give a longer text".to_owned());
        }
        Kind::MaxLength { limit } => {
            value(format!("is longer than {limit} characters"), "shorten it".to_owned());
        }
        _ => value(error.masked().to_string(), "see docs/configuration.md".to_owned()),
    }
}

fn known_keys(object: Option<&Value>) -> Vec<String> {
    let keys = object.and_then(|object| object.get("properties")).and_then(Value::as_object);
    keys.map(|keys| keys.keys().cloned().collect()).unwrap_or_default()
}

/// The values that an enumeration takes: `enum`, or one `const` for each documented variant.
fn choices(rule: Option<&Value>, holder: Option<&Value>) -> Vec<String> {
    let list = rule.and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<String> = list
        .flat_map(|choice| match choice {
            Value::String(text) => vec![text.clone()],
            Value::Object(object) => {
                let single = object.get("const").and_then(Value::as_str).map(str::to_owned);
                single.into_iter().chain(choices(object.get("enum"), None)).collect()
            }
            _ => Vec::new(),
        })
        .collect();
    let lone = holder.and_then(|holder| holder.get("const")).and_then(Value::as_str);
    if texts.is_empty() { lone.map(str::to_owned).into_iter().collect() } else { texts }
}

/// `did you mean …?` where one of `known` is near, else the list.
pub(crate) fn suggestion(given: &str, known: &[String]) -> String {
    let near = known.iter().map(|key| (strsim::damerau_levenshtein(given, key), key));
    match near.min() {
        Some((distance, key)) if distance <= (key.len() / 3).max(1) => format!("did you mean `{key}`?"),
        Some(_) => format!("known here: {}", known.join(", ")),
        None => "remove it".to_owned(),
    }
}

fn wanted_types(types: &Value) -> String {
    let one = |name: &str| match name {
        "string" => "text",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        "array" => "a list",
        "object" => "a mapping",
        _ => "empty",
    };
    match types {
        Value::String(name) => one(name).to_owned(),
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).map(one).collect::<Vec<_>>().join(" or ")
        }
        _ => String::new(),
    }
}

/// A value as an error may show it: short, on one line.
fn described(value: &Value) -> String {
    const SHOWN_MAX: usize = 60;
    match value {
        Value::Null => "empty".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => {
            let shown: String =
                text.chars().take(SHOWN_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
            let more = if text.chars().count() > SHOWN_MAX { "…" } else { "" };
            format!("the text \"{shown}{more}\"")
        }
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}

fn type_advice(value: &Value, wanted: &str) -> String {
    match value {
        Value::Null => format!("give {wanted}, or remove the key"),
        Value::String(_) if wanted == "true or false" => "write `true` or `false` without quotes".to_owned(),
        Value::String(_) if wanted == "a whole number" => "write digits without quotes or unit".to_owned(),
        Value::Number(_) | Value::Bool(_) if wanted == "text" => "put it in quotes".to_owned(),
        _ => format!("give {wanted}"),
    }
}

fn is_whole(holder: Option<&Value>) -> bool {
    holder.and_then(|holder| holder.get("type")).is_none_or(|kind| kind == "integer")
}

/// A number as people write it: `1`, not `1.0`.
pub(super) fn number(value: &Value) -> String {
    let text = value.to_string();
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

fn range(holder: Option<&Value>) -> String {
    let bound = |name| holder.and_then(|holder| holder.get(name)).map(number);
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!("from {least} to {most}"),
        (Some(least), None) => format!("of {least} or more"),
        (None, Some(most)) => format!("of at most {most}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_suggested_only_when_it_is_near() {
        let known = ["lease_s", "retry_after_s"].map(str::to_owned);
        assert_eq!(suggestion("leese_s", &known), "did you mean `lease_s`?");
        assert_eq!(suggestion("retry_after", &known), "did you mean `retry_after_s`?");
        assert_eq!(suggestion("colour", &known), "known here: lease_s, retry_after_s");
        assert_eq!(suggestion("colour", &[]), "remove it");
    }

    #[test]
    fn values_are_shown_short_and_on_one_line() {
        assert_eq!(described(&Value::from("a\nb")), "the text \"a\u{fffd}b\"");
        assert!(described(&Value::from("x".repeat(1000))).chars().count() < 80);
    }
}
