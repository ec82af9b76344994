package plan

// Variant is the plan's variant of that name.
func (p *Plan) Variant(name string) (Variant, bool) {
	for _, v := range p.Variants {
		if v.Name == name {
			return v, true
		}
	}
	return Variant{}, false
}
