//! Holds `docs/configuration.md` to the code: its tables are written from the schemas, its examples are loaded.
//! `UPDATE_GOLDEN=1` rewrites the tables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Config;
use super::structure::number;
use crate::endpoints::Endpoints;

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md")
}

/// One row a key of `part`, which is at `path`.
fn rows(path: &str, part: &Value, out: &mut String) {
    let required = part.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    for (key, property) in part.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let inner = property.get("properties").is_some();
        let default = match property.get("default") {
            _ if required.contains(&Value::from(key.as_str())) => "**required**".to_owned(),
            _ if inner => String::new(),
            None | Some(Value::Null) => "–".to_owned(),
            Some(Value::Array(list)) if list.len() == 1 => {
                format!("`{}`", list[0].as_str().unwrap_or_default())
            }
            Some(Value::String(text)) => format!("`{text}`"),
            Some(value) => format!("`{}`", number(value)),
        };
        let about =
            property.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ");
        out.push_str(&format!("| `{path}` | {} | {default} | {about} |\n", kind(property)));
        rows(&path, property, out);
        if let Some(items) = property.get("items") {
            rows(&format!("{path}[]"), items, out);
        }
        if let Some(items) = property.pointer("/additionalProperties/items") {
            rows(&format!("{path}.NAME[]"), items, out);
        }
    }
}

fn kind(property: &Value) -> String {
    if let Some(choices) = property.get("oneOf").and_then(Value::as_array) {
        let names = choices.iter().map(|choice| {
            let about = choice["description"].as_str().unwrap_or_default().trim_end_matches('.');
            format!("`{}` ({about})", choice["const"].as_str().expect("a name"))
        });
        return names.collect::<Vec<_>>().join(", ");
    }
    match &property["type"] {
        Value::String(name) if name == "integer" || name == "number" => {
            format!("{} to {}", number(&property["minimum"]), number(&property["maximum"]))
        }
        Value::String(name) => match name.as_str() {
            "string" => "text".to_owned(),
            "boolean" => "true, false".to_owned(),
            "array" => "list".to_owned(),
            _ => "section".to_owned(),
        },
        _ => "text or list".to_owned(),
    }
}

fn table(schema: &str) -> String {
    let mut out = "| Key | Values | Default | Meaning |\n|---|---|---|---|\n".to_owned();
    rows("", &serde_json::from_str(schema).expect("JSON"), &mut out);
    out
}

#[test]
fn the_tables_are_the_schemas() {
    let text = std::fs::read_to_string(page()).expect("the page");
    let mut wanted = text.clone();
    for (name, schema) in [("tokenweir.yaml", Config::schema()), ("endpoints.yaml", Endpoints::schema())] {
        let (open, close) = (format!("<!-- keys of {name} -->\n"), format!("<!-- end of {name} -->\n"));
        let (before, rest) = wanted.split_once(&open).expect("the table's begin");
        let (_, after) = rest.split_once(&close).expect("the table's end");
        wanted = format!("{before}{open}{}{close}{after}", table(&schema));
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(page(), &wanted).expect("written");
    } else {
        assert_eq!(text, wanted, "run this test with UPDATE_GOLDEN=1");
    }
}

/// Every YAML example begins with a comment that names its file: `# tokenweir.yaml` or `# endpoints.yaml`.
#[test]
fn every_example_loads() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(folder.path().join("tls")).expect("a folder");
    for key in ["k1", "k2"] {
        std::fs::write(folder.path().join(key), [1; 32]).expect("written");
    }
    for (file, label) in
        [("tls/cert.pem", "CERTIFICATE"), ("tls/key.pem", "PRIVATE KEY"), ("tls/ca.pem", "CERTIFICATE")]
    {
        std::fs::write(folder.path().join(file), format!("-----BEGIN {label}-----\n")).expect("written");
    }
    let text = std::fs::read_to_string(page()).expect("the page");
    let mut loaded: BTreeMap<&str, usize> = BTreeMap::new();
    let mut last = None;
    for block in text.split("```yaml\n").skip(1) {
        let (example, _) = block.split_once("```").expect("the example's end");
        let name = example.lines().next().and_then(|line| line.strip_prefix("# ")).expect("the file's name");
        let file = folder.path().join(name);
        match name {
            "tokenweir.yaml" => {
                let config =
                    Config::parse(example, &file).unwrap_or_else(|errors| panic!("{errors}\n{example}"));
                last = Some(config);
            }
            "endpoints.yaml" => {
                let config = last.as_ref().expect("a configuration before it");
                let endpoints =
                    Endpoints::parse(example, &file, config).unwrap_or_else(|errors| panic!("{errors}"));
                assert!(!endpoints.pools.is_empty());
            }
            other => panic!("{other} is no file of ours"),
        }
        *loaded.entry(name).or_default() += 1;
    }
    assert!(loaded["tokenweir.yaml"] >= 2 && loaded["endpoints.yaml"] >= 1, "{loaded:?}");
}
