//! Prompts as tokens: the chat template, written piece by piece, so that no prompt is copied as text.

use crate::ask::{Ask, Content, Input, Message, Prompts};
use crate::tokens::{self, IM_END, IM_START};
use serde_json::value::RawValue;

/// One message of a chat being rendered.
pub(crate) struct Chat(Vec<u32>);

impl Chat {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    fn open(&mut self, role: &str) {
        self.0.push(IM_START);
        tokens::encode(&format!("{role}\n"), &mut self.0);
    }

    fn close(&mut self) {
        self.0.push(IM_END);
        self.0.push(tokens::pack(b"\n"));
    }

    fn content(&mut self, content: &Content<'_>) {
        content.0.iter().for_each(|text| tokens::encode(&text.0, &mut self.0));
    }

    pub(crate) fn text(&mut self, role: &str, text: &str) {
        self.open(role);
        tokens::encode(text, &mut self.0);
        self.close();
    }

    fn message(&mut self, message: &Message<'_>) {
        self.open(message.role.as_ref().map_or("tool", |role| &role.0));
        self.content(&message.content);
        if let Some(output) = &message.output {
            self.content(output);
        }
        if let Some(arguments) = &message.arguments {
            tokens::encode(&arguments.0, &mut self.0);
        }
        if let Some(calls) = message.tool_calls {
            tokens::encode(calls.get(), &mut self.0);
        }
        self.close();
    }

    fn tools(&mut self, tools: &[&RawValue]) {
        self.open("system");
        for tool in tools {
            tokens::encode(tool.get(), &mut self.0);
            self.0.push(tokens::pack(b"\n"));
        }
        self.close();
    }

    pub(crate) fn answer(mut self) -> Vec<u32> {
        self.open("assistant");
        self.0
    }
}

/// The prompt of a chat, of messages, or of `/tokenize`.
pub(crate) fn of_messages(ask: &Ask<'_>) -> Vec<u32> {
    let mut chat = Chat::new();
    if let Some(tools) = ask.tools.as_deref().filter(|tools| !tools.is_empty()) {
        chat.tools(tools);
    }
    if let Some(system) = &ask.system {
        chat.open("system");
        chat.content(system);
        chat.close();
    }
    ask.messages.iter().flatten().for_each(|message| chat.message(message));
    if ask.add_generation_prompt == Some(false) { chat.0 } else { chat.answer() }
}

/// The prompt of a response; `history` is what came before, as role and text.
pub(crate) fn of_input(ask: &Ask<'_>, history: &[(String, String)]) -> Vec<u32> {
    let mut chat = Chat::new();
    if let Some(tools) = ask.tools.as_deref().filter(|tools| !tools.is_empty()) {
        chat.tools(tools);
    }
    if let Some(instructions) = &ask.instructions {
        chat.text("system", &instructions.0);
    }
    history.iter().for_each(|(role, text)| chat.text(role, text));
    match &ask.input {
        Some(Input::Text(text)) => chat.text("user", &text.0),
        Some(Input::Items(items)) => items.iter().for_each(|item| chat.message(item)),
        None => {}
    }
    chat.answer()
}

/// The turns of a response's input, to be kept with the response.
pub(crate) fn turns(ask: &Ask<'_>) -> Vec<(String, String)> {
    let joined = |content: &Content<'_>| content.0.iter().map(|text| text.0.as_ref()).collect::<String>();
    match &ask.input {
        Some(Input::Text(text)) => vec![("user".to_owned(), text.0.clone().into_owned())],
        Some(Input::Items(items)) => items
            .iter()
            .map(|item| {
                let role = item.role.as_ref().map_or("tool", |role| &role.0).to_owned();
                let mut text = joined(&item.content);
                text.extend(item.output.iter().map(joined));
                (role, text)
            })
            .collect(),
        None => Vec::new(),
    }
}

/// The prompts of a completion.
pub(crate) fn of_prompts(prompts: &Prompts<'_>) -> Vec<Vec<u32>> {
    match prompts {
        Prompts::Ids(lists) => lists.clone(),
        Prompts::Texts(texts) => texts
            .iter()
            .map(|text| {
                let mut out = Vec::new();
                tokens::encode(&text.0, &mut out);
                out
            })
            .collect(),
    }
}
