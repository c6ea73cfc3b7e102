//! What the filter must do with one response, decided with the request and carried as one line of
//! text in dynamic metadata.
//!
//! The text names its version, and a reader refuses what it does not know: a filter that guessed
//! at half a plan would show clients usage they did not ask for, or count it wrongly.

use std::fmt;
use std::str::FromStr;

use crate::api::Api;

const VERSION: &str = "1";

/// How to read one response, and what to take out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The API the request was for.
    pub api: Api,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// What the client must not see.
    pub strip: Strip,
}

/// Which usage in a stream the client did not ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strip {
    /// The client asked for all there is.
    Nothing,
    /// The client asked for the final usage only: take it out of every other event.
    Continuous,
    /// The client asked for none: drop the usage event, and take usage out of all others.
    All,
}

impl Strip {
    const fn as_label(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Continuous => "continuous",
            Self::All => "all",
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.stream { "stream" } else { "whole" };
        write!(f, "{VERSION};{};{form};strip={}", self.api.as_label(), self.strip.as_label())
    }
}

/// Why a plan's text could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The first field isn't a version this code knows.
    Version,
    /// Not exactly four fields.
    Fields,
    /// The second field names no API.
    Api,
    /// The third field is neither `stream` nor `whole`.
    Form,
    /// The fourth field isn't `strip=nothing`, `strip=continuous` or `strip=all`.
    Strip,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "plan of another version; run the same release of the service and the filter",
            Self::Fields => "plan without exactly four fields",
            Self::Api => "plan names an API this filter doesn't know",
            Self::Form => "plan's third field is neither `stream` nor `whole`",
            Self::Strip => "plan's fourth field isn't strip=nothing, strip=continuous or strip=all",
        })
    }
}

impl std::error::Error for PlanError {}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let mut fields = text.split(';');
        if fields.next() != Some(VERSION) {
            return Err(PlanError::Version);
        }
        let (Some(api), Some(form), Some(strip), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(PlanError::Fields);
        };
        let api = Api::from_label(api).ok_or(PlanError::Api)?;
        let stream = match form {
            "stream" => true,
            "whole" => false,
            _ => return Err(PlanError::Form),
        };
        let strip = match strip {
            "strip=nothing" => Strip::Nothing,
            "strip=continuous" => Strip::Continuous,
            "strip=all" => Strip::All,
            _ => return Err(PlanError::Strip),
        };
        Ok(Self { api, stream, strip })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_survives_its_text() {
        for api in Api::ALL {
            for stream in [false, true] {
                for strip in [Strip::Nothing, Strip::Continuous, Strip::All] {
                    let plan = Plan { api, stream, strip };
                    assert_eq!(plan.to_string().parse(), Ok(plan));
                }
            }
        }
        let plan = Plan { api: Api::ChatCompletions, stream: true, strip: Strip::All };
        assert_eq!(plan.to_string(), "1;chat_completions;stream;strip=all");
    }

    #[test]
    fn unknown_text_is_refused() {
        for (text, error) in [
            ("", PlanError::Version),
            ("2;chat_completions;stream;strip=all", PlanError::Version),
            ("1", PlanError::Fields),
            ("1;chat_completions;stream", PlanError::Fields),
            ("1;chat_completions;stream;strip=all;x=1", PlanError::Fields),
            ("1;chat;stream;strip=all", PlanError::Api),
            ("1;chat_completions;Stream;strip=all", PlanError::Form),
            ("1;chat_completions;stream;strip=some", PlanError::Strip),
            ("1;chat_completions;stream;strip=all ", PlanError::Strip),
        ] {
            assert_eq!(text.parse::<Plan>(), Err(error), "{text}");
        }
    }
}
