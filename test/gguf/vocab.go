package gguf

import "fmt"

// The special tokens' ids.
const (
	unknownID = iota
	beginID
	endID
	firstByte // ids firstByte to firstByte+255 are the 256 bytes
)

// Token types of tokenizer.ggml.token_type (llama_token_type in llama.h).
const (
	kindNormal  = 1
	kindUnknown = 2
	kindControl = 3
	kindByte    = 6
)

// VocabularySize is the number of tokens that every Model knows: 3 special
// ones, 256 bytes, the space, 26 lower-case letters, the full stop and the
// comma. With no longer pieces each letter, space, stop or comma of a text is
// one token and every other character as many as it has bytes in UTF-8.
const VocabularySize = 3 + 256 + len(pieces)

// pieces are the printable tokens; '_' stands for the space, which
// SentencePiece spells U+2581.
const pieces = "_abcdefghijklmnopqrstuvwxyz.,"

type tokens struct {
	text  []string
	score []float32
	kind  []int32
}

func vocabulary() tokens {
	var v tokens
	add := func(text string, score float32, kind int32) {
		v.text, v.score, v.kind = append(v.text, text), append(v.score, score), append(v.kind, kind)
	}
	add("<unk>", 0, kindUnknown)
	add("<s>", 0, kindControl)
	add("</s>", 0, kindControl)
	for b := range 256 {
		add(fmt.Sprintf("<0x%02X>", b), 0, kindByte)
	}
	for i, c := range pieces {
		if c == '_' {
			c = '\u2581'
		}
		add(string(c), -float32(i), kindNormal)
	}
	return v
}

// silent reports whether a model must not say the token: specials, because an
// end token ends a reply early; control bytes; and, unless rawBytes, the bytes
// that are no character on their own.
func (v tokens) silent(id int, rawBytes bool) bool {
	if v.kind[id] != kindByte {
		return v.kind[id] != kindNormal
	}
	b := id - firstByte
	return b < 0x20 || b == 0x7f || b > 0x7f && !rawBytes
}
