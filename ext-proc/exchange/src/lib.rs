//! One exchange as a state machine: (phase, event, now) to (phase, effects).
