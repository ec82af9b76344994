"""Write a tokenizer of one token a byte into a folder.

Benchmark clients want one to count with, and would fetch the model's own from a
place that tests do not depend on. The stand-in reports its counts itself.
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
for word in ("<unk>", "</s>"):
    vocab[word] = len(vocab)
tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
fast.save_pretrained(sys.argv[1])
pathlib.Path(sys.argv[1], "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": len(vocab)}))
