//! JSON with the order of its members kept, and what two documents differ in.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Node;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Bool(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Number(value as f64))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::Number(value as f64))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(Node::Number(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Text(value.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Node::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = items.next_entry()? {
                    members.push(member);
                }
                Ok(Node::Object(members))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl Node {
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The member at `a.b.0.c`, or null.
    pub fn at(&self, path: &str) -> &Node {
        path.split('.').fold(self, |node, step| match node {
            Node::Object(members) => {
                members.iter().find(|(name, _)| name == step).map_or(&Node::Null, |(_, one)| one)
            }
            Node::List(items) => step.parse().ok().and_then(|at: usize| items.get(at)).unwrap_or(&Node::Null),
            _ => &Node::Null,
        })
    }

    pub fn number(&self, path: &str) -> Option<f64> {
        if let Node::Number(value) = self.at(path) { Some(*value) } else { None }
    }

    fn kind(&self) -> &'static str {
        match self {
            Node::Null => "null",
            Node::Bool(_) => "bool",
            Node::Number(_) => "number",
            Node::Text(_) => "text",
            Node::List(_) => "list",
            Node::Object(_) => "object",
        }
    }

    /// Members and kinds, without what `free` says may be anything.
    pub fn shape(&self, path: &str, free: &dyn Fn(&str) -> Free) -> String {
        if free(path) == Free::Anything {
            return "*".to_owned();
        }
        match self {
            Node::Object(members) => {
                let one = |(name, node): &(String, Node)| {
                    format!("{name}:{}", node.shape(&format!("{path}.{name}"), free))
                };
                format!("{{{}}}", members.iter().map(one).collect::<Vec<_>>().join(","))
            }
            Node::List(items) => match items.first() {
                Some(first) => format!("[{}]", first.shape(&format!("{path}[]"), free)),
                None => "[]".to_owned(),
            },
            other => other.kind().to_owned(),
        }
    }
}

/// How much a value may differ from the capture's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Free {
    /// Not at all.
    Nothing,
    /// Another value of the same kind.
    Value,
    /// Another kind.
    Anything,
}

/// Everything in which `ours` differs from `theirs`.
pub fn differences(
    path: &str,
    ours: &Node,
    theirs: &Node,
    free: &dyn Fn(&str) -> Free,
    found: &mut Vec<String>,
) {
    let allowed = free(path);
    if allowed == Free::Anything {
        return;
    }
    match (ours, theirs) {
        (Node::Object(ours), Node::Object(theirs)) => {
            let names =
                |members: &[(String, Node)]| members.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
            if names(ours) != names(theirs) {
                found.push(format!("{path}: members {:?} against {:?}", names(ours), names(theirs)));
                return;
            }
            for ((name, one), (_, other)) in ours.iter().zip(theirs) {
                differences(&format!("{path}.{name}"), one, other, free, found);
            }
        }
        (Node::List(ours), Node::List(theirs)) => {
            if ours.len() != theirs.len() && allowed == Free::Nothing {
                found.push(format!("{path}: {} items against {}", ours.len(), theirs.len()));
            }
            for (one, other) in ours.iter().zip(theirs) {
                differences(&format!("{path}[]"), one, other, free, found);
            }
        }
        _ if ours.kind() != theirs.kind() => {
            found.push(format!("{path}: {} against {}", ours.kind(), theirs.kind()));
        }
        _ if ours != theirs && allowed == Free::Nothing => {
            found.push(format!("{path}: {ours:?} against {theirs:?}"))
        }
        _ => {}
    }
}
