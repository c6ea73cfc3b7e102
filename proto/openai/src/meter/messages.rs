//! Events of Anthropic message streams.

use super::Tally;
use super::stream::Seen;
use crate::json::{Kind, Scanner, Step};
use crate::usage::Counts;

#[derive(Debug, Default)]
struct Message {
    kind: Type,
    counts: Option<Counts>,
    stopped: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Type {
    Start,
    Content,
    Delta,
    Stop,
    Error,
    #[default]
    Other,
}

fn type_of(name: &[u8]) -> Type {
    match name {
        b"message_start" => Type::Start,
        b"content_block_delta" => Type::Content,
        b"message_delta" => Type::Delta,
        b"message_stop" => Type::Stop,
        b"error" => Type::Error,
        _ => Type::Other,
    }
}

/// Reads one event. Those that carry content are told by their name alone.
pub(super) fn read(name: &[u8], data: &[u8], seen: &mut Seen, tally: &mut Tally) {
    let named = type_of(name);
    if named == Type::Content {
        seen.content += 1;
        return;
    }
    if named == Type::Other && !name.is_empty() {
        return;
    }
    match parse(data) {
        Ok(message) => count(&message, seen, tally),
        Err(_) => tally.unparsed = true,
    }
}

fn count(message: &Message, seen: &mut Seen, tally: &mut Tally) {
    if let Some(counts) = &message.counts {
        tally.unparsed |= counts.is_odd();
        counts.anthropic_into(&mut seen.usage);
        seen.counted |= seen.usage.is_telling();
        seen.delta |= message.kind == Type::Delta && counts.has_output();
    }
    match message.kind {
        Type::Content => seen.content += 1,
        Type::Stop => tally.complete = true,
        Type::Error => tally.error_event = true,
        _ => {}
    }
    seen.last |= seen.delta && (message.stopped || message.kind == Type::Stop);
}

fn parse(data: &[u8]) -> Step<Message> {
    let mut scanner = Scanner::new(data);
    let mut message = Message::default();
    if scanner.peek()? != Kind::Object {
        scanner.skip()?;
        scanner.end()?;
        return Ok(message);
    }
    scanner.open()?;
    let mut first = true;
    while let Some(key) = scanner.member(&mut first)? {
        match (&*key.name(), scanner.peek()?) {
            (b"type", Kind::String) => message.kind = type_of(&scanner.string()?.name()),
            (b"usage", _) => message.counts = Counts::read(&mut scanner)?.or(message.counts),
            (b"message" | b"delta", Kind::Object) => inner(&mut scanner, &mut message)?,
            _ => scanner.skip()?,
        }
    }
    scanner.end()?;
    Ok(message)
}

/// `message` of the start event, `delta` of the delta event.
fn inner(scanner: &mut Scanner<'_>, message: &mut Message) -> Step<()> {
    scanner.open()?;
    let mut first = true;
    while let Some(key) = scanner.member(&mut first)? {
        match (&*key.name(), scanner.peek()?) {
            (b"usage", _) => message.counts = Counts::read(scanner)?.or(message.counts),
            (b"stop_reason", Kind::String) => {
                message.stopped = true;
                scanner.skip()?;
            }
            _ => scanner.skip()?,
        }
    }
    Ok(())
}
