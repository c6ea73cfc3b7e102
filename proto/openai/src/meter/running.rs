//! Running counts of a chat or completion stream, added up over its choices.
//!
//! Engines write a running usage for the choice that an event is of, not for the response: only the
//! final usage is a sum. So a client that leaves before it has used what its choices used together.
//!
//! The prompt is one for all choices of a chat. A completion may have a list of prompts, and each
//! choice says the count of its own. How many choices a prompt has is not known here; but choices of
//! one prompt are neighbours and give the same count, so where the count changes another prompt
//! begins. Equal neighbours are taken for one prompt: a lower bound, as all that is cumulative.

use crate::limits::CHOICES_MAX;
use crate::usage::Usage;

/// The running counts so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Running {
    /// By index.
    choices: Vec<Choice>,
    /// The largest counts that no single choice could be found for, or was left for when memory was short.
    rest: Choice,
}

#[derive(Clone, Copy, Debug, Default)]
struct Choice {
    usage: Usage,
    seen: bool,
    /// Its last event came, and had counts.
    finished: bool,
}

impl Choice {
    fn merge(&mut self, usage: &Usage, finished: bool) {
        self.usage.merge_max(usage);
        self.seen = true;
        self.finished |= finished;
    }
}

impl Running {
    /// Takes the counts of an event: of the choice `index`, or, without one, of several at once.
    pub(super) fn merge(&mut self, index: Option<usize>, usage: &Usage, finished: bool) {
        let Some(at) = index.filter(|index| *index < CHOICES_MAX) else {
            // A choice past the bound has neighbours there: when all have ended isn't known.
            return self.rest.merge(usage, finished && index.is_none());
        };
        if at >= self.choices.len() {
            self.choices.reserve_exact(at + 1 - self.choices.len());
            self.choices.resize(at + 1, Choice::default());
        }
        if let Some(choice) = self.choices.get_mut(at) {
            choice.merge(usage, finished);
        }
    }

    /// What was used so far; `prompts`: each choice may have a prompt of its own.
    pub(super) fn usage(&self, prompts: bool) -> Usage {
        let mut sum = Usage::default();
        let (mut input, mut before) = (None, None);
        for Choice { usage, .. } in &self.choices {
            if usage.input.is_some() && usage.input != before {
                input = add(input, usage.input);
                before = usage.input;
            }
            let (output, reasoning) = (add(sum.output, usage.output), add(sum.reasoning, usage.reasoning));
            sum.merge_max(usage);
            (sum.output, sum.reasoning) = (output, reasoning);
        }
        if prompts {
            sum.input = input;
        }
        sum.merge_max(&self.rest.usage);
        sum
    }

    /// Whether there were counts, and each choice that had some had them on its last event too.
    pub(super) fn is_finished(&self) -> bool {
        let mut seen = self.choices.iter().chain([&self.rest]).filter(|choice| choice.seen).peekable();
        seen.peek().is_some() && seen.all(|choice| choice.finished)
    }

    pub(super) const fn kept_bytes(&self) -> usize {
        self.choices.capacity() * size_of::<Choice>()
    }

    /// Frees the memory. What comes later is at least counted by itself.
    pub(super) fn let_go(&mut self, prompts: bool) {
        if self.choices.is_empty() {
            return;
        }
        self.rest.usage = self.usage(prompts);
        (self.rest.seen, self.rest.finished) = (true, false);
        self.choices = Vec::new();
    }
}

fn add(sum: Option<u64>, count: Option<u64>) -> Option<u64> {
    match (sum, count) {
        (Some(sum), Some(count)) => Some(sum.saturating_add(count)),
        (sum, count) => sum.or(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(input: u64, output: u64) -> Usage {
        Usage { input: Some(input), output: Some(output), ..Usage::default() }
    }

    fn run(events: &[(usize, u64, u64)]) -> Running {
        let mut running = Running::default();
        for (index, input, output) in events {
            running.merge(Some(*index), &counts(*input, *output), false);
        }
        running
    }

    #[test]
    fn outputs_are_summed_and_a_chat_has_one_prompt() {
        let running = run(&[(0, 9, 1), (1, 9, 1), (3, 9, 4), (0, 9, 2), (3, 9, 3)]);
        assert_eq!(running.usage(false), counts(9, 2 + 1 + 4));
        assert_eq!(Running::default().usage(true), Usage::default());
    }

    #[test]
    fn prompts_are_told_apart_where_their_counts_differ() {
        let input = |events: &[(usize, u64, u64)]| run(events).usage(true).input;
        assert_eq!(input(&[(0, 5, 1), (1, 5, 1), (2, 7, 1), (3, 7, 1), (4, 5, 1)]), Some(17));
        assert_eq!(input(&[(2, 7, 1), (0, 5, 1), (5, 7, 1)]), Some(12), "what is missing adds nothing");
        assert_eq!(input(&[(0, 5, 1), (1, 5, 1)]), Some(5), "a lower bound: two prompts, or one with n=2");
    }

    #[test]
    fn choices_past_the_bound_are_counted_by_their_largest() {
        let mut running = run(&[(0, 5, 10)]);
        for index in [CHOICES_MAX, CHOICES_MAX + 1, usize::MAX] {
            running.merge(Some(index), &counts(5, 30), false);
        }
        assert_eq!(running.usage(false), counts(5, 30));
        running.merge(Some(CHOICES_MAX - 1), &counts(5, 25), false);
        assert_eq!(running.usage(false), counts(5, 35));
        assert!(running.kept_bytes() <= CHOICES_MAX * size_of::<Choice>());
    }

    #[test]
    fn it_is_finished_when_each_choice_is() {
        let mut running = run(&[(0, 5, 1), (2, 5, 1)]);
        assert!(!running.is_finished() && !Running::default().is_finished());
        running.merge(Some(0), &counts(5, 2), true);
        assert!(!running.is_finished());
        running.merge(Some(2), &counts(5, 2), true);
        assert!(running.is_finished());
        let mut beyond = running.clone();
        beyond.merge(Some(CHOICES_MAX), &counts(5, 1), true);
        assert!(!beyond.is_finished(), "its neighbours are not known");
        running.let_go(false);
        assert!(running.kept_bytes() == 0 && !running.is_finished());
        assert_eq!(running.usage(false), counts(5, 4));
        running.merge(Some(2), &counts(5, 3), true);
        assert_eq!(running.usage(false), counts(5, 4), "never less than before");
    }
}
