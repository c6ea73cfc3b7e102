#!/usr/bin/env python3
"""Makes a tiny Llama of random weights with a tokenizer trained on the spot: no network, no model hub.

usage: make_tiny_model.py OUT_FOLDER
needs: torch, transformers 5 or newer, tokenizers, safetensors: all in the virtual environment of vLLM
"""
import glob
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
HIDDEN = 128
LAYERS = 2
CONTEXT = 4096
SEED = 0
TEXTS = ["/usr/share/common-licenses/*", "/usr/share/doc/*/copyright", os.path.join(sys.prefix, "lib/python3*/*.py")]
TEXTS_MAX = 400

# ChatML, with tools rendered in the style of Hermes, so that vLLM's parser of that name has something to parse.
TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}"
    "{{- '# Tools\\n\\n<tools>' }}{%- for t in tools %}{{- '\\n' + (t | tojson) }}{%- endfor %}"
    "{{- '\\n</tools>\\n\\nReturn <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call><|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for m in messages %}"
    "{%- if not (tools and loop.first and m['role'] == 'system') %}"
    "{{- '<|im_start|>' + m['role'] + '\\n' + (m['content'] or '') }}"
    "{%- if m.tool_calls %}{%- for c in m.tool_calls %}"
    "{{- '\\n<tool_call>\\n' + (c.function | tojson) + '\\n</tool_call>' }}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def make_tokenizer():
    # The first pattern that finds files: which machine this is decides, and any English text will do.
    for pattern in TEXTS:
        files = sorted({os.path.realpath(path) for path in glob.glob(pattern) if os.path.isfile(path)})
        if files:
            break
    else:
        sys.exit(f"no text to train a tokenizer on; looked at {', '.join(TEXTS)}")
    tokenizer = Tokenizer(models.BPE(unk_token=None, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(files[:TEXTS_MAX], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        bos_token=None,
        unk_token=None,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def make_model(tokenizer):
    torch.manual_seed(SEED)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    pad = tokenizer.convert_tokens_to_ids("<|pad|>")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN * 2,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // 32,
        num_key_value_heads=HIDDEN // 64,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        dtype="float32",
    )
    model = LlamaForCausalLM(config).float()
    model.generation_config.eos_token_id = end
    model.generation_config.pad_token_id = pad
    return model


def main(out):
    os.makedirs(out, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(out)
    model = make_model(tokenizer)
    model.save_pretrained(out, safe_serialization=True)
    print(f"{out}: {sum(p.numel() for p in model.parameters())} parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    main(sys.argv[1])
