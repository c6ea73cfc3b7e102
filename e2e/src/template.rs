//! Fills `@NAMES@` in configuration templates. A name alone on its line takes a block, indented as the name was.

use anyhow::{Result, bail};

/// `text` with every `@NAME@` replaced by its value. A name without a value is an error: a half-filled
/// configuration must not reach Envoy.
pub fn fill(text: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut out = String::with_capacity(text.len() * 2);
    for line in text.lines() {
        let trimmed = line.trim_start();
        let block = values.iter().find(|(name, _)| is_name(trimmed.trim_end(), name));
        if let Some((_, value)) = block {
            let indent = &line[..line.len() - trimmed.len()];
            for inner in value.lines() {
                out.push_str(indent);
                out.push_str(inner);
                out.push('\n');
            }
            continue;
        }
        let mut line = line.to_owned();
        for (name, value) in values {
            line = line.replace(&format!("@{name}@"), value);
        }
        if let Some(name) = unfilled(&line) {
            bail!("no value for @{name}@ in the line: {}", line.trim());
        }
        out.push_str(&line);
        out.push('\n');
    }
    Ok(out)
}

fn is_name(word: &str, name: &str) -> bool {
    word.strip_prefix('@').and_then(|rest| rest.strip_suffix('@')) == Some(name)
}

fn unfilled(line: &str) -> Option<&str> {
    let mut pieces = line.split('@');
    pieces.next();
    pieces.find(|piece| piece.len() > 1 && piece.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
}

#[cfg(test)]
mod tests {
    use super::fill;

    #[test]
    fn a_block_keeps_the_indentation_of_its_name() {
        let filled = fill("a:\n  @B@\n  c: @D@\n", &[("B", "- x\n- y: 1"), ("D", "9")]).unwrap();
        assert_eq!(filled, "a:\n  - x\n  - y: 1\n  c: 9\n");
    }

    #[test]
    fn an_unknown_name_is_an_error_and_a_type_url_is_not() {
        assert!(fill("port: @PORT@", &[]).is_err());
        assert!(fill("\"@type\": type.googleapis.com/x", &[]).is_ok());
    }
}
