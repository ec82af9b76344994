package model

// panel is the number of output columns that the inner loop computes together.
const panel = 16

// matrix is a weight matrix of in rows and out columns, packed so that the 16
// columns of a panel lie together: element (k, c) is data[(c/16·in + k)·16 + c%16].
type matrix struct {
	in, out int
	data    []float32
}

func newMatrix(in, out int) matrix {
	if out%panel != 0 {
		panic("model: matrix columns must be a multiple of 16")
	}
	return matrix{in: in, out: out, data: make([]float32, in*out)}
}

func (m matrix) at(k, c int) *float32 { return &m.data[(c/panel*m.in+k)*panel+c%panel] }

// mul writes y = x·m for n rows that lie one after another in x (n × in) and y
// (n × out). Each row is summed in the order of k whatever n is, so a row's
// result does not depend on the batch that it is in.
func (m matrix) mul(y, x []float32, n int) {
	_, _ = x[n*m.in-1], y[n*m.out-1]
	for c := 0; c < m.out; c += panel {
		b := m.data[c*m.in : (c+panel)*m.in]
		r := 0
		for ; r+4 <= n; r += 4 {
			mul4(m.in, x[r*m.in:], m.in, b, y[r*m.out+c:], m.out)
		}
		for ; r < n; r++ {
			mul1(m.in, x[r*m.in:], b, y[r*m.out+c:])
		}
	}
}

// mulPortable is the inner loop in plain Go: one row against one panel.
func mulPortable(k int, x, b, y []float32) {
	var acc [panel]float32
	for i, v := range x[:k] {
		row := b[i*panel : i*panel+panel]
		for c := range acc {
			acc[c] += v * row[c]
		}
	}
	copy(y[:panel], acc[:])
}
