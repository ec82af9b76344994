package schema

import "embed"

// Definitions holds the CUE package twopoint.local/schema, file by file.
//
//go:embed *.cue
var Definitions embed.FS
