//! What is asked and when, drawn from a seed before the run: every strategy gets the very same requests.

use crate::text::words;
use crate::workload::{Kind, Workload};
use fastrand::Rng;
use std::sync::Arc;

/// One question.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The beginning that others may share; empty where nothing is shared.
    pub system: Arc<str>,
    /// What it asks.
    pub user: Arc<str>,
    /// Generated tokens, exactly.
    pub output: usize,
}

/// One conversation: the next question follows an answer after a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// The first holds the long beginning; each with the seconds of thought before it.
    pub turns: Vec<(f64, Question)>,
}

/// A load, ready to be sent. Times are seconds of engine time from the start.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Each question at its time, whatever became of the others.
    Open(Vec<(f64, Question)>),
    /// So many lines of conversations, each beginning at its time, one conversation after the other.
    Closed(Vec<(f64, Vec<Conversation>)>),
}

/// Time until the next of events that come `rate` times a second.
fn exponential(rng: &mut Rng, rate: f64) -> f64 {
    -(1.0 - rng.f64()).ln() / rate
}

impl Plan {
    /// Draws `span_s` seconds of `workload` at `rate` requests a second, or with `sessions` conversations at once.
    #[must_use]
    pub fn draw(workload: &Workload, rate: f64, sessions: usize, span_s: f64, seed: u64) -> Self {
        // A workload at two loads has the same prompts.
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let none: Arc<str> = Arc::from("");
        match workload.kind {
            Kind::Shared { groups, prefix, suffix, output } => {
                let beginnings: Vec<Arc<str>> =
                    (0..groups).map(|_| Arc::from(words(&mut rng, prefix))).collect();
                open(rate, span_s, &mut rng, |rng| Question {
                    system: beginnings[rng.usize(..groups)].clone(),
                    user: Arc::from(words(rng, suffix)),
                    output,
                })
            }
            Kind::Unique { prompt, output } => open(rate, span_s, &mut rng, |rng| Question {
                system: none.clone(),
                user: Arc::from(words(rng, prompt)),
                output,
            }),
            Kind::Turns { first, question, output, turns, think_s } => {
                // The first questions come at the rate of later ones, not all at once.
                let spread_s = sessions as f64 / rate;
                let line = |n: usize| {
                    let mut rng = rng.fork();
                    let begins = spread_s * (n as f64 + rng.f64()) / sessions as f64;
                    let mut conversations = Vec::new();
                    // Answers take time too: these are more than any line gets through.
                    let mut thought = 0.0;
                    while thought < span_s {
                        let conversation =
                            converse(&mut rng, [first, question, output], turns, think_s, &none);
                        thought += conversation.turns.iter().map(|(think, _)| think).sum::<f64>();
                        conversations.push(conversation);
                    }
                    (begins, conversations)
                };
                Self::Closed((0..sessions).map(line).collect())
            }
        }
    }
}

fn open(rate: f64, span_s: f64, rng: &mut Rng, ask: impl Fn(&mut Rng) -> Question) -> Plan {
    let (mut at, mut arrivals) = (0.0, Vec::new());
    loop {
        at += exponential(rng, rate);
        if at >= span_s {
            return Plan::Open(arrivals);
        }
        arrivals.push((at, ask(rng)));
    }
}

fn converse(
    rng: &mut Rng,
    [first, question, output]: [usize; 3],
    turns: usize,
    think_s: f64,
    none: &Arc<str>,
) -> Conversation {
    let count = rng.usize(turns / 2..=turns);
    let turn = |n: usize| {
        let tokens = if n == 0 { first } else { question };
        let user: Arc<str> = Arc::from(words(rng, tokens));
        (exponential(rng, 1.0 / think_s), Question { system: none.clone(), user, output })
    };
    Conversation { turns: (0..count).map(turn).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::WORKLOADS;
    use std::collections::HashMap;

    fn draw(name: &str, span_s: f64, seed: u64) -> Plan {
        let workload = WORKLOADS.iter().find(|one| one.name == name).expect("a known workload");
        Plan::draw(workload, 50.0, 80, span_s, seed)
    }

    #[test]
    fn a_seed_says_everything() {
        for workload in WORKLOADS {
            assert_eq!(draw(workload.name, 1.0, 1), draw(workload.name, 1.0, 1), "{}", workload.name);
            assert_ne!(draw(workload.name, 1.0, 1), draw(workload.name, 1.0, 2), "{}", workload.name);
        }
    }

    #[test]
    fn arrivals_have_their_rate_and_beginnings_are_shared_evenly() {
        let Plan::Open(arrivals) = draw("shared_1.0", 20.0, 3) else { panic!("an open load") };
        assert!((900..1100).contains(&arrivals.len()), "{}", arrivals.len());
        assert!(arrivals.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        let mut groups: HashMap<&str, usize> = HashMap::new();
        arrivals.iter().for_each(|(_, question)| *groups.entry(&question.system).or_default() += 1);
        assert_eq!(groups.len(), 40);
        assert!(groups.values().all(|count| (8..50).contains(count)), "{groups:?}");
    }

    #[test]
    fn conversations_begin_one_after_the_other_and_have_their_turns() {
        let Plan::Closed(lines) = draw("turns_1.0", 1.0, 3) else { panic!("a closed load") };
        assert_eq!(lines.len(), 80);
        assert!(lines.iter().all(|(begins, _)| (0.0..1.65).contains(begins)));
        let all: Vec<&Conversation> = lines.iter().flat_map(|(_, line)| line).collect();
        assert!(all.iter().all(|one| (4..=8).contains(&one.turns.len())));
        let first = &all[0].turns;
        assert_eq!((first[0].1.user.len(), first[1].1.user.len()), (6000, 400));
        let thoughts: Vec<f64> =
            all.iter().flat_map(|one| one.turns.iter().map(|(think, _)| *think)).collect();
        let mean = thoughts.iter().sum::<f64>() / thoughts.len() as f64;
        assert!((0.9..1.1).contains(&mean), "{mean}");
    }
}
