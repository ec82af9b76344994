package claim

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"strconv"
	"strings"
)

// number is a figure as a spec writes it: a number, or one in quotes.
func number(v any) (float64, bool) {
	switch v := v.(type) {
	case json.Number:
		x, err := v.Float64()
		return x, err == nil
	case float64:
		return v, true
	case string:
		x, err := strconv.ParseFloat(v, 64)
		return x, err == nil
	}
	return 0, false
}

// Rounding is half a unit of the last digit in which a figure is written: 0.05 for
// 109.2, 0.5 for 3181, 0.005 for 0.60. It is 0 for what is no number.
func Rounding(v any) float64 {
	text := strings.ToLower(fmt.Sprint(v))
	if _, ok := number(v); !ok {
		return 0
	}
	mantissa, power, _ := strings.Cut(text, "e")
	_, decimals, _ := strings.Cut(mantissa, ".")
	e, _ := strconv.Atoi(power)
	return 0.5 * math.Pow10(e-len(decimals))
}

// evaluate computes a formula of +, −, ·, / and brackets over figures by interval
// arithmetic: the result's interval holds every value that inputs within theirs can
// give. A name that comes twice counts as two.
func evaluate(formula string, inputs map[string]Figure) (Figure, error) {
	tree, err := parser.ParseExpr(formula)
	if err != nil {
		return Figure{}, errors.New("is not one of +, -, *, / and brackets over the inputs' names")
	}
	f, err := eval(tree, inputs)
	f.By = ByRounding
	return f, err
}

func eval(e ast.Expr, inputs map[string]Figure) (Figure, error) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return eval(e.X, inputs)
	case *ast.BasicLit:
		x, err := strconv.ParseFloat(e.Value, 64)
		if err != nil {
			return Figure{}, fmt.Errorf("%s is no number", e.Value)
		}
		return Figure{Value: x, Lo: x, Hi: x}, nil
	case *ast.Ident:
		f, ok := inputs[e.Name]
		if !ok {
			return Figure{}, fmt.Errorf("%s is not among the inputs", e.Name)
		}
		return f, nil
	case *ast.UnaryExpr:
		if e.Op == token.SUB {
			x, err := eval(e.X, inputs)
			return Figure{Value: -x.Value, Lo: -x.Hi, Hi: -x.Lo}, err
		}
	case *ast.BinaryExpr:
		x, err := eval(e.X, inputs)
		if err != nil {
			return x, err
		}
		y, err := eval(e.Y, inputs)
		if err != nil {
			return y, err
		}
		return combine(e.Op, x, y)
	}
	return Figure{}, errors.New("holds more than +, -, *, / and brackets")
}

func combine(op token.Token, x, y Figure) (Figure, error) {
	var f func(a, b float64) float64
	switch op {
	case token.ADD:
		f = func(a, b float64) float64 { return a + b }
	case token.SUB:
		f = func(a, b float64) float64 { return a - b }
	case token.MUL:
		f = func(a, b float64) float64 { return a * b }
	case token.QUO:
		if y.Lo <= 0 && y.Hi >= 0 {
			return Figure{}, errors.New("divides by what may be zero")
		}
		f = func(a, b float64) float64 { return a / b }
	default:
		return Figure{}, fmt.Errorf("%s is none of +, -, *, /", op)
	}
	r := Figure{Value: f(x.Value, y.Value), Lo: math.Inf(1), Hi: math.Inf(-1)}
	for _, a := range []float64{x.Lo, x.Hi} {
		for _, b := range []float64{y.Lo, y.Hi} {
			r.Lo, r.Hi = min(r.Lo, f(a, b)), max(r.Hi, f(a, b))
		}
	}
	return r, nil
}
