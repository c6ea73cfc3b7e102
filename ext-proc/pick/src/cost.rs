//! The cost of one endpoint for one request: seconds, each term by itself.
//!
//! `wait + prefill + kv room + λ·(what the running generations and this request cost each other) + taxes`. The
//! coefficients are priors today. A learned [`Speed`] of an endpoint takes their place without any other change.

use crate::explain::Explanation;
use crate::load::Load;
use crate::settings::Speed;
use crate::signals::Foreign;

/// How much a second that is spread over running generations weighs against a second until a first token.
const LAMBDA: f64 = 0.1;
/// An evicting cache makes an uncached token cost this many times more than its own computing, at most.
const KAPPA: f64 = 1.0;
/// Share of the KV cache that engines fill before requests wait for room.
const KV_FULL: f64 = 0.95;
/// Longest wait for room that is believed; seconds.
const KV_WAIT_MAX_S: f64 = 60.0;
/// A full set of adapters costs this many loads: one must finish and leave first.
const ADAPTERS_FULL: f64 = 4.0;

/// The request, as far as it is the same for every endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) prompt_tokens: f64,
    pub(crate) output_tokens: f64,
    /// Of others' requests: uncached and all prompt tokens of a usual one.
    pub(crate) usual_uncached: f64,
    pub(crate) usual_prompt: f64,
}

/// One endpoint, as far as its cost depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'a> {
    /// Its speed, its pace included.
    pub(crate) speed: &'a Speed,
    pub(crate) pace: f64,
    pub(crate) load: &'a Load,
    pub(crate) matched_tokens: f64,
    /// Blended with the pool's mean where the signals are old.
    pub(crate) foreign: Foreign,
    pub(crate) evicting: f64,
    pub(crate) kv_capacity_tokens: f64,
    /// What the engine said it holds of it, in tokens; `None`: it hasn't said.
    pub(crate) kv_used_tokens: Option<f64>,
    /// How far that is believed, 0 to 1.
    pub(crate) signal_weight: f64,
    /// Loads of adapters that come first.
    pub(crate) lora_s: f64,
    pub(crate) lora_full: bool,
    pub(crate) penalty_s: f64,
}

/// Computing `uncached` tokens behind `context` others; seconds.
pub(crate) fn prefill_s(speed: &Speed, uncached: f64, context: f64) -> f64 {
    speed.c_p * uncached + speed.c_a * uncached * (context + uncached / 2.0)
}

/// Tokens of the KV cache that requests hold or are about to: the sum of what each holds, but no more than the engine says
/// it uses and what is on its way there. Requests share what they begin with, and only the engine knows how much of it.
fn held_tokens(site: &Site<'_>, context: f64, usual_context: f64, output_tokens: f64) -> f64 {
    let Site { load, foreign, .. } = *site;
    let others = (foreign.kv_tokens - (foreign.running + foreign.waiting) * usual_context).max(0.0);
    let sum = others + context;
    let Some(used) = site.kv_used_tokens else { return sum };
    let streams = f64::from(load.in_flight()) + foreign.running + foreign.waiting;
    let coming = load.unseen_tokens as f64 + streams * output_tokens / 2.0;
    site.signal_weight * sum.min(used + coming) + (1.0 - site.signal_weight) * sum
}

/// The cost there, term by term.
pub(crate) fn explain(request: &Request, site: &Site<'_>, now_ms: u64) -> Explanation {
    let Site { speed, load, foreign, .. } = *site;
    let prompt = request.prompt_tokens;
    // The last token is always computed: its logits are wanted.
    let matched = site.matched_tokens.min(prompt - 1.0).max(0.0);
    let uncached = prompt - matched;
    let prefill = prefill_s(speed, uncached, matched);
    let foreign_s = foreign.waiting * prefill_s(speed, request.usual_uncached, 0.0);

    // Whoever waits for a first token now will generate soon, and beside this request.
    let streams = f64::from(load.in_flight()) + foreign.running + foreign.waiting;
    let decoding = f64::from(load.decoding) + foreign.running;
    let usual_context = request.usual_prompt + request.output_tokens / 2.0;
    let context = (load.context_tokens + load.prefill_context_tokens) as f64
        + (foreign.running + foreign.waiting) * usual_context;
    let own_context = prompt + request.output_tokens / 2.0;
    let step = speed.step_s(streams, context);

    let wait = load.wait_s(step, now_ms) * site.pace;

    let over = held_tokens(site, context, usual_context, request.output_tokens)
        + own_context
        + request.output_tokens / 2.0
        - KV_FULL * site.kv_capacity_tokens;
    // In a full batch a stream lasts its output's steps, and then frees what it held.
    let freed_per_s = context / (request.output_tokens * step).max(1e-9);
    let kv_wait = (over / freed_per_s.max(1.0)).clamp(0.0, KV_WAIT_MAX_S);

    let decode = LAMBDA
        * (decoding * prefill
            + request.output_tokens * streams * (speed.c_b + speed.c_kv * own_context)
            + request.output_tokens * step);
    let evicting = KAPPA * site.evicting * prefill;
    let lora = site.lora_s * if site.lora_full { ADAPTERS_FULL } else { 1.0 };
    let kv_wait = (kv_wait - wait - foreign_s).max(0.0);
    Explanation {
        matched_tokens: matched as u64,
        uncached_tokens: uncached as u64,
        pace: site.pace,
        prefill_s: prefill,
        step_s: step,
        wait_s: wait,
        foreign_s,
        kv_wait_s: kv_wait,
        decode_s: decode,
        evicting_s: evicting,
        lora_s: lora,
        penalty_s: site.penalty_s,
        total_s: prefill + wait + foreign_s + kv_wait + decode + evicting + lora + site.penalty_s,
        signal_age_ms: None,
        signal_weight: 0.0,
    }
}
