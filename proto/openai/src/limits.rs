//! Every bound of this crate, in one place, so that memory and time per exchange can be reasoned about.

/// Deepest nesting of arrays and objects a request may have, the body itself being level 1.
pub const NESTING_MAX: usize = 128;

/// Most digits of an integer. Python, and so every engine, refuses longer ones.
pub const INTEGER_DIGITS_MAX: usize = 4300;

/// Most members the top-level object of a request may have.
pub const MEMBERS_MAX: usize = 256;

/// Most bytes of a model name, after its escapes are read.
pub const MODEL_BYTES_MAX: usize = 256;

/// Most bytes of a response's id, in a path or as `previous_response_id`. Longer ones name nothing.
pub const RESPONSE_ID_BYTES_MAX: usize = 128;

/// Most text spans (strings that go into the prompt) one request may have.
pub const SPANS_MAX: usize = 65_536;

/// Most bytes of one key that an error message repeats; longer keys are cut there.
pub const KEY_SHOWN_BYTES_MAX: usize = 64;

/// Most bytes of one SSE event, its blank line included. A longer one passes unread.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// Choices of one stream whose running counts are told apart; of those past it the largest counts.
pub const CHOICES_MAX: usize = 128;

/// Largest token count that is believed. No prompt is that long, and sums of such counts can't overflow.
pub const COUNT_MAX: u64 = 1 << 48;

/// Most bytes of room that a stream keeps for the next event, once one is over.
pub const ROOM_BYTES_MAX: usize = 4 << 10;

/// Most bytes of an event that is kept as the template for the next one.
pub const TEMPLATE_BYTES_MAX: usize = 2 << 10;

/// Most bytes of one value (`usage`, `error`) kept while a JSON response goes by.
pub const USAGE_BYTES_MAX: usize = 16 << 10;

/// Most bytes held back for the event that may follow a finishing event.
pub const HOLD_BYTES_MAX: usize = 64 << 10;

/// Most events held back for the event that may follow a finishing event.
pub const HOLD_EVENTS_MAX: usize = 128;
