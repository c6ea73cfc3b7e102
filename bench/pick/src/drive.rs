//! Sends a plan: open loads at their times, whatever became of earlier requests; conversations turn by turn.

use crate::plan::{Conversation, Plan, Question};
use crate::summary::Answer;
use crate::wire::Target;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How time passes, and when it is over.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// When engine time began.
    pub start: Instant,
    /// Seconds of engine time in a second.
    pub scale: f64,
    /// Seconds of engine time in which requests are sent.
    pub span_s: f64,
    /// Seconds of engine time that an answer may take.
    pub limit_s: f64,
}

impl Pace {
    fn at(&self, engine_s: f64) -> Instant {
        self.start + Duration::from_secs_f64(engine_s / self.scale)
    }

    fn engine_s(&self, time: Duration) -> f64 {
        time.as_secs_f64() * self.scale
    }

    fn is_over(&self) -> bool {
        self.engine_s(self.start.elapsed()) >= self.span_s
    }
}

/// Sends all of `plan` to `target`. Every request gives an answer, also one that fails.
pub async fn drive(plan: Plan, target: Arc<Target>, pace: Pace) -> Vec<Answer> {
    let mut running = JoinSet::new();
    match plan {
        Plan::Open(arrivals) => {
            let mut answers = JoinSet::new();
            for (at, question) in arrivals {
                let due = pace.at(at);
                tokio::time::sleep_until(due).await;
                let target = Arc::clone(&target);
                answers.spawn(async move { ask(&target, &question, &[], due, pace).await.0 });
            }
            return answers.join_all().await;
        }
        Plan::Closed(lines) => {
            for (begins, conversations) in lines {
                running.spawn(converse(begins, conversations, Arc::clone(&target), pace));
            }
        }
    }
    running.join_all().await.into_iter().flatten().collect()
}

/// One line of conversations, until time is over.
async fn converse(
    begins: f64,
    conversations: Vec<Conversation>,
    target: Arc<Target>,
    pace: Pace,
) -> Vec<Answer> {
    let mut answers = Vec::new();
    let mut due = pace.at(begins);
    for conversation in conversations {
        let mut history = Vec::new();
        for (turn, (think_s, question)) in conversation.turns.into_iter().enumerate() {
            if turn > 0 {
                due = Instant::now() + Duration::from_secs_f64(think_s / pace.scale);
            }
            tokio::time::sleep_until(due).await;
            if pace.is_over() {
                return answers;
            }
            let (answer, text) = ask(&target, &question, &history, due, pace).await;
            answers.push(answer);
            if !answer.whole {
                break;
            }
            history.push((question.user.to_string(), text));
        }
        due = Instant::now();
    }
    answers
}

/// Asks one question that is due at `due`; times count from then, not from when it was really sent.
async fn ask(
    target: &Target,
    question: &Question,
    history: &[(String, String)],
    due: Instant,
    pace: Pace,
) -> (Answer, String) {
    let late_s = pace.engine_s(due.elapsed());
    let due_s = pace.engine_s(due.saturating_duration_since(pace.start));
    let limit = Duration::from_secs_f64(pace.limit_s / pace.scale);
    let Ok(received) = target.ask(question, history, limit).await else {
        return (Answer { due_s, late_s, ..Answer::default() }, String::new());
    };
    let since = |time: Option<std::time::Instant>| {
        time.map_or(0.0, |time| pace.engine_s(time.saturating_duration_since(due.into_std())))
    };
    let [prompt_tokens, cached_tokens, output] = received.usage.unwrap_or_default();
    let (first_s, last_s) = (since(received.first), since(received.last));
    let answer = Answer {
        whole: output == question.output as u64,
        due_s,
        first_s,
        end_s: pace.engine_s(due.elapsed()),
        gap_s: (last_s - first_s) / (output.max(2) - 1) as f64,
        late_s,
        prompt_tokens,
        cached_tokens,
    };
    (answer, received.text)
}
