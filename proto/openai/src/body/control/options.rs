//! `stream_options`: where its members stand, for the edit that may follow, and what usage the client wants to see.

use super::{NO_COERCION, Reader, twice};
use crate::body::{BodyError, Flag, StreamOptions, UsageWish};
use crate::json::Kind;

impl Reader<'_> {
    pub(super) fn stream_options(&mut self, kind: Kind) -> Result<(), BodyError> {
        if kind != Kind::Object {
            let range = self.scanner.value()?;
            self.stream_options =
                if kind == Kind::Null { StreamOptions::Null(range) } else { StreamOptions::Other };
            return Ok(());
        }
        self.scanner.open()?;
        let members_at = self.scanner.at();
        let (mut include_usage, mut continuous_usage_stats) = (None, None);
        let mut first = true;
        let mut empty = true;
        while let Some(key) = self.scanner.member(&mut first)? {
            empty = false;
            let (name, slot) = match &*key.name() {
                b"include_usage" => ("stream_options.include_usage", &mut include_usage),
                b"continuous_usage_stats" => {
                    ("stream_options.continuous_usage_stats", &mut continuous_usage_stats)
                }
                _ => {
                    self.scanner.skip()?;
                    continue;
                }
            };
            if slot.is_some() {
                return Err(twice("stream_options", name, &key));
            }
            let kind = self.scanner.peek()?;
            let start = self.scanner.at();
            let value = match kind {
                Kind::Bool => Some(self.scanner.bool()?),
                Kind::Null => self.scanner.null().map(|()| Some(false))?,
                _ => self.scanner.value().map(|_| None)?,
            };
            *slot = Some(Flag { range: start..self.scanner.at(), value });
        }
        self.stream_options =
            StreamOptions::Object { members_at, empty, include_usage, continuous_usage_stats };
        Ok(())
    }
}

/// `continuous_usage_stats` alone does nothing in engines, so it is no wish either.
pub(super) fn usage_wish(options: &StreamOptions) -> Result<UsageWish, BodyError> {
    let (include_usage, continuous) = match options {
        StreamOptions::Absent | StreamOptions::Null(_) => return Ok(UsageWish::None),
        StreamOptions::Other => {
            let message = "`stream_options` must be an object or null.".into();
            return Err(BodyError::new("stream_options", message));
        }
        StreamOptions::Object { include_usage, continuous_usage_stats, .. } => {
            (include_usage, continuous_usage_stats)
        }
    };
    let read = |flag: &Option<Flag>, name: &str| match flag {
        None => Ok(false),
        Some(flag) => flag.value.ok_or_else(|| {
            let message = format!("`stream_options.{name}` must be true, false or null. {NO_COERCION}");
            BodyError::new("stream_options", message)
        }),
    };
    match (read(include_usage, "include_usage")?, read(continuous, "continuous_usage_stats")?) {
        (false, _) => Ok(UsageWish::None),
        (true, false) => Ok(UsageWish::Final),
        (true, true) => Ok(UsageWish::Continuous),
    }
}
