// Command control has a known vulnerability, GO-2021-0113, and reaches it, so
// that run.sh can see that its check works. It is never shipped.
package main

import (
	"fmt"
	"os"

	"golang.org/x/text/language"
)

func main() {
	tags, _, err := language.ParseAcceptLanguage(os.Getenv("LANGUAGE"))
	fmt.Println(tags, err)
}
