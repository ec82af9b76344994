package main
import (
 _ "cuelang.org/go/cue"
 _ "cuelang.org/go/cue/load"
 _ "cuelang.org/go/encoding/yaml"
 _ "github.com/apache/arrow-go/v18/arrow"
 _ "github.com/apache/arrow-go/v18/parquet/pqarrow"
 _ "github.com/spf13/cobra"
 _ "github.com/rogpeppe/go-internal/testscript"
 _ "gonum.org/v1/gonum/stat/distuv"
 _ "golang.org/x/perf/benchmath"
 _ "golang.org/x/sys/unix"
 _ "golang.org/x/term"
 _ "golang.org/x/sync/errgroup"
)
func main(){}
