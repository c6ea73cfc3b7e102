//! Events of response streams.

use super::Tally;
use super::stream::Seen;
use crate::json::{Kind, Scanner, Step};
use crate::usage::Counts;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Type {
    Content,
    Done,
    Failed,
    Error,
    #[default]
    Other,
}

fn type_of(name: &[u8]) -> Type {
    match name {
        b"response.completed" | b"response.incomplete" => Type::Done,
        b"response.failed" => Type::Failed,
        b"error" => Type::Error,
        _ if name.ends_with(b".delta") => Type::Content,
        _ => Type::Other,
    }
}

/// Reads one event. Only the last one carries usage, and all are told by their name.
pub(super) fn read(name: &[u8], data: &[u8], seen: &mut Seen, tally: &mut Tally) {
    let named = type_of(name);
    if named == Type::Content {
        seen.content += 1;
        return;
    }
    if named == Type::Other && !name.is_empty() {
        return;
    }
    let Ok((read, counts, error)) = parse(data) else {
        tally.unparsed = true;
        return;
    };
    let kind = if name.is_empty() { read } else { named };
    tally.complete |= matches!(kind, Type::Done | Type::Failed);
    tally.error_event |= matches!(kind, Type::Failed | Type::Error) || error;
    seen.content += u64::from(kind == Type::Content);
    if let Some(counts) = counts
        && matches!(kind, Type::Done | Type::Failed)
    {
        tally.unparsed |= counts.is_odd();
        seen.usage = counts.openai();
        seen.counted = seen.usage.is_telling();
        seen.last = seen.counted;
    }
}

fn parse(data: &[u8]) -> Step<(Type, Option<Counts>, bool)> {
    let mut scanner = Scanner::new(data);
    let (mut kind, mut counts, mut error) = (Type::Other, None, false);
    if scanner.peek()? != Kind::Object {
        scanner.skip()?;
        scanner.end()?;
        return Ok((kind, counts, error));
    }
    scanner.open()?;
    let mut first = true;
    while let Some(key) = scanner.member(&mut first)? {
        match (&*key.name(), scanner.peek()?) {
            (b"type", Kind::String) => kind = type_of(&scanner.string()?.name()),
            (b"response", Kind::Object) => {
                scanner.open()?;
                let mut first = true;
                while let Some(key) = scanner.member(&mut first)? {
                    if key.is("usage") { counts = Counts::read(&mut scanner)? } else { scanner.skip()? }
                }
            }
            (b"error", Kind::Object) => {
                error = true;
                scanner.skip()?;
            }
            _ => scanner.skip()?,
        }
    }
    scanner.end()?;
    Ok((kind, counts, error))
}
