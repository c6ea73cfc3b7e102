//! A stream of events: reads each, decides its fate, keeps the tally.

use memchr::memmem::Finder;

use super::hold::Hold;
use super::running::Running;
use super::template::Template;
use super::{Pushed, Tally, chat, messages, responses};
use crate::api::Api;
use crate::plan::{Plan, Strip};
use crate::sse::{Event, Framer, Piece};
use crate::usage::{Usage, UsageSource};

/// The state of one stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    framer: Framer,
    reader: Reader,
}

#[derive(Clone, Debug)]
pub(super) struct Reader {
    api: Api,
    strip: Strip,
    hold: Hold,
    template: Template,
    pub(super) marks: Marks,
    pub(super) seen: Seen,
    /// Some bytes came.
    bytes: bool,
    /// Some of them were SSE.
    understood: bool,
}

/// What decides, together with the usage itself, how far the usage can be trusted.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The engine's own counts of the whole response so far.
    pub(super) usage: Usage,
    /// Its counts of single choices.
    pub(super) running: Running,
    /// Some counts came.
    pub(super) counted: bool,
    /// The final counts came.
    pub(super) last: bool,
    /// A `message_delta` brought usage.
    pub(super) delta: bool,
    /// Events that carried generated content.
    pub(super) content: u64,
}

/// Byte sequences that decide whether an event is worth parsing. Engines write these names
/// without escapes.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    pub(super) usage: Finder<'static>,
    pub(super) choices: Finder<'static>,
    pub(super) finish_reason: Finder<'static>,
    pub(super) content: Finder<'static>,
}

impl Stream {
    pub(super) fn new(plan: Plan) -> Self {
        let strip = if plan.stream && plan.api.takes_stream_options() { plan.strip } else { Strip::Nothing };
        let content: &[u8] = if plan.api == Api::Completions { b"\"text\":\"" } else { b"\"content\":\"" };
        let marks = Marks {
            usage: Finder::new(b"\"usage\""),
            choices: Finder::new(b"\"choices\""),
            finish_reason: Finder::new(b"\"finish_reason\""),
            content: Finder::new(content),
        };
        let reader = Reader {
            api: plan.api,
            strip,
            hold: Hold::default(),
            template: Template::default(),
            marks,
            seen: Seen::default(),
            bytes: false,
            understood: false,
        };
        Self { framer: Framer::default(), reader }
    }

    pub(super) fn push(&mut self, chunk: &[u8], tally: &mut Tally, out: &mut Vec<u8>) -> Pushed {
        let Self { framer, reader } = self;
        reader.bytes |= !chunk.is_empty();
        let (events, start) = (tally.events, out.len());
        framer.push(chunk, &mut |piece| reader.piece(piece, tally, out));
        reader.settle(tally);
        let data_events = u32::try_from(tally.events - events).unwrap_or(u32::MAX);
        let edited = reader.strip != Strip::Nothing && out.get(start..) != Some(chunk);
        if !edited {
            out.truncate(start);
        }
        Pushed { edited, data_events }
    }

    pub(super) fn finish(&mut self, tally: &mut Tally, out: &mut Vec<u8>) -> bool {
        let Self { framer, reader } = self;
        let start = out.len();
        framer.finish(&mut |piece| reader.piece(piece, tally, out));
        reader.hold.flush(None, out);
        reader.settle(tally);
        tally.unparsed |= reader.bytes && !reader.understood;
        reader.bytes = false;
        out.len() > start
    }

    pub(super) fn kept_bytes(&self) -> usize {
        let reader = &self.reader;
        let kept = reader.hold.kept_bytes() + reader.template.kept_bytes() + reader.seen.running.kept_bytes();
        self.framer.kept_bytes() + kept
    }

    pub(super) fn let_go(&mut self, tally: &mut Tally, out: &mut Vec<u8>) {
        let Self { framer, reader } = self;
        framer.let_go(&mut |piece| reader.piece(piece, tally, out));
        reader.hold.let_go(out);
        reader.template.let_go();
        reader.seen.running.let_go(reader.api == Api::Completions);
    }
}

impl Reader {
    fn piece(&mut self, piece: Piece<'_>, tally: &mut Tally, out: &mut Vec<u8>) {
        match piece {
            Piece::Event { raw, first } => self.event(raw, first, tally, out),
            Piece::Long { raw, start } => {
                self.understood = true;
                tally.truncated = true;
                tally.events += u64::from(start);
                self.pass(raw, out);
            }
            Piece::Tail if self.strip != Strip::Nothing => self.hold.tail(out),
            Piece::Tail => {}
        }
    }

    /// Hands an event on as it is, behind what is held.
    fn pass(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        if self.strip != Strip::Nothing {
            self.hold.flush(None, out);
            self.hold.pass(raw, out);
        }
    }

    fn event(&mut self, raw: &[u8], first: bool, tally: &mut Tally, out: &mut Vec<u8>) {
        let event = Event::read(raw, first);
        self.understood |= event.understood;
        let Some(data) = event.data.as_deref() else {
            // Comments keep their place, and change nothing.
            if self.strip != Strip::Nothing {
                self.hold.pass(raw, out);
            }
            return;
        };
        if data.trim_ascii() == b"[DONE]" {
            tally.complete = true;
            return self.pass(raw, out);
        }
        tally.events += 1;
        match self.api {
            Api::Messages => messages::read(event.name, data, &mut self.seen, tally),
            Api::Responses => responses::read(event.name, data, &mut self.seen, tally),
            _ => return self.chunk(raw, &event, data, tally, out),
        }
        self.pass(raw, out);
    }

    /// An event of a chat or completion stream.
    fn chunk(&mut self, raw: &[u8], event: &Event<'_>, data: &[u8], tally: &mut Tally, out: &mut Vec<u8>) {
        let chunk = if let Some(chunk) = self.template.read(data) {
            chunk
        } else if let Some(content) = chat::is_plain(data, &self.marks) {
            self.seen.content += u64::from(content);
            return self.pass(raw, out);
        } else if let Ok(chunk) = chat::Chunk::read(data) {
            self.template.learn(data, &chunk);
            chunk
        } else {
            tally.unparsed = true;
            return self.pass(raw, out);
        };
        chunk.count(&mut self.seen, tally);
        if self.strip == Strip::Nothing {
            return;
        }
        let all = self.strip == Strip::All;
        if all && chunk.is_usage_only() {
            let fingerprint = chunk.fingerprint.and_then(|range| data.get(range));
            self.hold.flush(fingerprint, out);
            self.hold.drop_event();
            return;
        }
        let cut = if all || (chunk.has_choices && chunk.counts.is_some()) { chunk.usage_cut } else { None };
        let cut = cut.filter(|cut| !cut.is_empty());
        let cut = cut.map_or(0..0, |cut| event.raw_at(cut.start)..event.raw_at(cut.end - 1) + 1);
        let kept = [raw.get(..cut.start).unwrap_or_default(), raw.get(cut.end..).unwrap_or_default()];
        match chunk.choices_end {
            Some(end) if all && chunk.finished && chunk.fingerprint.is_none() && !chunk.error && end > 0 => {
                let slot = event.raw_at(end - 1) + 1;
                let before = if cut.start < slot { cut.len() } else { 0 };
                self.hold.hold(&kept.concat(), slot - before, out);
            }
            _ => kept.iter().for_each(|kept| self.pass(kept, out)),
        }
    }

    /// Turns what was seen into counts and their source.
    fn settle(&self, tally: &mut Tally) {
        let seen = &self.seen;
        tally.usage = seen.usage.or(&seen.running.usage(self.api == Api::Completions));
        let output = tally.usage.output;
        // Some engines send no usage event, but counts with each choice's last event.
        let is_last = seen.last || (tally.complete && !tally.error_event && seen.running.is_finished());
        // Events of a chat may be more than its tokens: one that is echoed counts as no output.
        let is_trusted = seen.counted && output.is_some() && self.api != Api::Messages;
        tally.source = if is_last && (output.is_some() || seen.content == 0) {
            UsageSource::Final
        } else if seen.content > output.unwrap_or(0) && !is_trusted {
            tally.usage.output = Some(seen.content);
            UsageSource::Estimated
        } else if seen.counted {
            UsageSource::Cumulative
        } else {
            UsageSource::None
        };
    }
}
