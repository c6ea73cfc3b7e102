//! YAML text to a JSON value, with the place of every key and value.
//!
//! Built on parser events instead of a serde front end, because errors must name a line, and because the subset that a
//! configuration needs is small: one document, text keys, no anchors, no aliases, no tags. What falls outside is refused
//! with its place, so nothing can blow up when it is expanded.

use std::borrow::Cow;
use std::collections::BTreeMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// Greatest nesting of lists and mappings.
pub(crate) const DEPTH_MAX: usize = 32;

/// Most problems that one reading collects before it stops.
pub(crate) const PROBLEMS_MAX: usize = 100;

/// A place in the text, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl From<Marker> for Position {
    fn from(mark: Marker) -> Self {
        Self { line: mark.line().max(1), column: mark.col().saturating_add(1) }
    }
}

/// What is wrong with the text as YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) position: Position,
    /// JSON pointer of the node.
    pub(crate) pointer: String,
    pub(crate) what: String,
    pub(crate) advice: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct Places {
    key: Option<Position>,
    value: Position,
}

/// A parsed document.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) value: Value,
    places: BTreeMap<String, Places>,
}

impl Document {
    /// Place of the value at `pointer`, or of the nearest parent that exists.
    pub(crate) fn value_position(&self, pointer: &str) -> Position {
        self.nearest(pointer).map_or(Position { line: 1, column: 1 }, |places| places.value)
    }

    /// Place of the key that holds `pointer`; of the value where there is no key (a list item).
    pub(crate) fn key_position(&self, pointer: &str) -> Position {
        self.nearest(pointer)
            .map_or(Position { line: 1, column: 1 }, |places| places.key.unwrap_or(places.value))
    }

    fn nearest(&self, pointer: &str) -> Option<Places> {
        let mut at = pointer;
        loop {
            if let Some(places) = self.places.get(at) {
                return Some(*places);
            }
            at = at.rsplit_once('/')?.0;
        }
    }
}

/// JSON pointer of `key` below `parent`.
pub(crate) fn child(parent: &str, key: &str) -> String {
    format!("{parent}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Parses `text`. The document is absent where the text has no usable value; problems may come with a document (doubled
/// keys), so that the checks of its content can report at the same time.
pub(crate) fn parse(text: &str) -> (Option<Document>, Vec<Problem>) {
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(next) = parser.next_event() {
        let (event, span) = match next {
            Ok(next) => next,
            Err(error) => {
                let position = Position::from(*error.marker());
                let what = format!("not YAML (column {}): {}", position.column, error.info());
                builder.fatal(
                    position,
                    String::new(),
                    what,
                    "check indentation, quotes and brackets on this line",
                );
                break;
            }
        };
        builder.take(event, span.start.into());
        if builder.stopped || builder.problems.len() >= PROBLEMS_MAX {
            builder.stopped = true;
            break;
        }
    }
    builder.finish()
}

enum Holder {
    List(Vec<Value>),
    Mapping { map: Map<String, Value>, key: Option<(String, Position)> },
}

struct Frame {
    pointer: String,
    holder: Holder,
}

#[derive(Default)]
struct Builder {
    frames: Vec<Frame>,
    places: BTreeMap<String, Places>,
    problems: Vec<Problem>,
    root: Option<Value>,
    documents: usize,
    stopped: bool,
}

impl Builder {
    fn problem(
        &mut self,
        position: Position,
        pointer: String,
        what: impl Into<String>,
        advice: &'static str,
    ) {
        self.problems.push(Problem { position, pointer, what: what.into(), advice });
    }

    fn fatal(&mut self, position: Position, pointer: String, what: impl Into<String>, advice: &'static str) {
        self.problem(position, pointer, what, advice);
        self.stopped = true;
    }

    fn take(&mut self, event: Event<'_>, at: Position) {
        match event {
            Event::DocumentStart(_) => {
                self.documents = self.documents.saturating_add(1);
                if self.documents > 1 {
                    self.fatal(
                        at,
                        String::new(),
                        "a second YAML document",
                        "keep one document and remove this `---`",
                    );
                }
            }
            Event::Alias(_) => {
                let pointer = self.pointer_of_next();
                self.fatal(at, pointer, "aliases (`*name`) are not supported", "write the value out");
            }
            Event::Scalar(text, style, anchor, tag) => {
                if self.plain(anchor, tag.is_some(), at) {
                    self.scalar(text, style, at);
                }
            }
            Event::SequenceStart(anchor, tag) => {
                if self.plain(anchor, tag.is_some(), at) {
                    self.open(Holder::List(Vec::new()), at);
                }
            }
            Event::MappingStart(anchor, tag) => {
                if self.plain(anchor, tag.is_some(), at) {
                    self.open(Holder::Mapping { map: Map::new(), key: None }, at);
                }
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
    }

    /// Whether a node carries nothing but its value.
    fn plain(&mut self, anchor: usize, tagged: bool, at: Position) -> bool {
        if anchor > 0 {
            let pointer = self.pointer_of_next();
            self.fatal(
                at,
                pointer,
                "anchors (`&name`) are not supported",
                "write the value out where it is used",
            );
        } else if tagged {
            let pointer = self.pointer_of_next();
            self.fatal(at, pointer, "tags (`!name`) are not supported", "put the text in quotes instead");
        }
        !self.stopped
    }

    fn pointer_of_next(&self) -> String {
        let Some(frame) = self.frames.last() else { return String::new() };
        match &frame.holder {
            Holder::List(items) => format!("{}/{}", frame.pointer, items.len()),
            Holder::Mapping { key: Some((key, _)), .. } => child(&frame.pointer, key),
            Holder::Mapping { key: None, .. } => frame.pointer.clone(),
        }
    }

    fn at_key(&self) -> bool {
        matches!(self.frames.last(), Some(Frame { holder: Holder::Mapping { key: None, .. }, .. }))
    }

    fn open(&mut self, holder: Holder, at: Position) {
        let pointer = self.pointer_of_next();
        if self.at_key() {
            self.fatal(at, pointer, "a key that is a list or a mapping", "a key must be plain text");
        } else if self.frames.len() >= DEPTH_MAX {
            self.fatal(
                at,
                pointer,
                format!("nested deeper than {DEPTH_MAX} levels"),
                "remove the extra levels",
            );
        } else {
            self.mark(&pointer, at);
            self.frames.push(Frame { pointer, holder });
        }
    }

    fn close(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        self.place(match frame.holder {
            Holder::List(items) => Value::Array(items),
            Holder::Mapping { map, .. } => Value::Object(map),
        });
    }

    fn scalar(&mut self, text: Cow<'_, str>, style: ScalarStyle, at: Position) {
        let mut doubled = None;
        if let Some(Frame { pointer, holder: Holder::Mapping { map, key: key @ None } }) =
            self.frames.last_mut()
        {
            if map.contains_key(text.as_ref()) {
                doubled = Some(child(pointer, &text));
            }
            *key = Some((text.into_owned(), at));
        } else {
            let pointer = self.pointer_of_next();
            self.mark(&pointer, at);
            self.place(if style == ScalarStyle::Plain {
                resolve(&text)
            } else {
                Value::String(text.into_owned())
            });
        }
        if let Some(pointer) = doubled {
            let first = self.places.get(&pointer).map_or(at, |places| places.key.unwrap_or(places.value));
            let what = format!("given twice (first on line {})", first.line);
            self.problem(at, pointer, what, "keep one of the two");
        }
    }

    /// The first sighting stays: the second value of a doubled key is read past.
    fn mark(&mut self, pointer: &str, value: Position) {
        let key = match self.frames.last() {
            Some(Frame { holder: Holder::Mapping { key: Some((_, at)), .. }, .. }) => Some(*at),
            Some(_) | None => None,
        };
        self.places.entry(pointer.to_owned()).or_insert(Places { key, value });
    }

    fn place(&mut self, value: Value) {
        match self.frames.last_mut().map(|frame| &mut frame.holder) {
            None => self.root = Some(value),
            Some(Holder::List(items)) => items.push(value),
            Some(Holder::Mapping { map, key }) => {
                if let Some((key, _)) = key.take() {
                    map.entry(key).or_insert(value);
                }
            }
        }
    }

    fn finish(mut self) -> (Option<Document>, Vec<Problem>) {
        if self.stopped {
            return (None, self.problems);
        }
        match self.root.take() {
            Some(value) if !value.is_null() => (Some(Document { value, places: self.places }), self.problems),
            Some(_) | None => {
                let start = Position { line: 1, column: 1 };
                self.problem(
                    start,
                    String::new(),
                    "the file has no content",
                    "see docs/configuration.md for an example",
                );
                (None, self.problems)
            }
        }
    }
}

/// A plain scalar by the YAML 1.2 core schema. `yes`, `no`, `on` and `off` are text there.
fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    if let Some(number) = integer(text) {
        return number;
    }
    let numeric = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'))
        && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E'));
    let float = if numeric { text.parse::<f64>().ok() } else { None };
    float.and_then(serde_json::Number::from_f64).map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

fn integer(text: &str) -> Option<Value> {
    let radix = |digits: &str, radix| {
        // `from_str_radix` takes a sign; YAML does not after a prefix.
        if digits.starts_with(['+', '-']) {
            None
        } else {
            u64::from_str_radix(digits, radix).ok().map(Value::from)
        }
    };
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    text.parse::<u64>().map(Value::from).or_else(|_| text.parse::<i64>().map(Value::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        let (document, problems) = parse(text);
        assert_eq!(problems, Vec::new(), "{text}");
        document.expect("a document").value
    }

    fn problem(text: &str) -> Problem {
        let (_, mut problems) = parse(text);
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        problems.remove(0)
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        let text = "a: 1\nb: -2\nc: 0x1f\nd: 0o17\ne: 1.5\nf: yes\ng: 'true'\nh: true\ni: ~\nj:\nk: 1e400\nl: 0x-1\nm: 1:2\n";
        let want = json!({"a": 1, "b": -2, "c": 31, "d": 15, "e": 1.5, "f": "yes", "g": "true", "h": true, "i": null,
            "j": null, "k": "1e400", "l": "0x-1", "m": "1:2"});
        assert_eq!(value(text), want);
        assert_eq!(value("a: [1, {b: c}]\nd: |\n  x\n  y\n"), json!({"a": [1, {"b": "c"}], "d": "x\ny\n"}));
    }

    #[test]
    fn every_key_and_value_has_its_place() {
        let (document, _) = parse("a:\n  - b: 1\n    c/d:\n      2\n");
        let document = document.expect("a document");
        assert_eq!(document.value_position("/a/0/c~1d"), Position { line: 4, column: 7 });
        assert_eq!(document.key_position("/a/0/c~1d"), Position { line: 3, column: 5 });
        assert_eq!(document.key_position("/a/0/nothing/here").line, 2);
        assert_eq!(document.key_position("/zzz").line, 2 - 1);
    }

    #[test]
    fn a_doubled_key_is_a_problem_and_the_first_value_stays() {
        let (document, problems) = parse("a: 1\nb: {c: 1}\nb: {c: 2, d: 3}\n");
        assert_eq!(document.expect("a document").value, json!({"a": 1, "b": {"c": 1}}));
        assert_eq!(problems.len(), 1);
        assert_eq!((problems[0].position.line, problems[0].pointer.as_str()), (3, "/b"));
        assert_eq!(problems[0].what, "given twice (first on line 2)");
    }

    #[test]
    fn what_could_blow_up_is_refused_with_its_line() {
        assert!(problem("a: &x [1]\nb: *x\n").what.contains("anchors"));
        let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n";
        assert_eq!(problem(bomb).position.line, 1);
        assert!(problem("a: !!str 1\n").what.contains("tags"));
        assert!(problem("[a]: 1\n").what.contains("key"));
        assert!(problem("a: 1\n---\nb: 2\n").what.contains("second"));
        for bomb in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000)] {
            let problem = problem(&bomb);
            // The scanner has a limit of its own for brackets, and looks ahead.
            let refused = problem.what.contains("deeper than 32") || problem.what.contains("recursion limit");
            assert!(refused, "{}", problem.what);
        }
    }

    #[test]
    fn a_file_without_content_says_so() {
        for text in ["", "# nothing\n", "---\n", "~\n", "\u{feff}"] {
            assert!(problem(text).what.contains("no content"), "{text:?}");
        }
    }
}
