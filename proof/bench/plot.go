package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// A curve is how the cost of a heartbeat grows with one thing.
type curve struct {
	name, axis string
	points     []point
}

type point struct {
	x    int
	cost beatCost
}

// A panel is one small plot: x on a logarithmic axis, y from 0.
type panel struct {
	title, axis string
	x, y        []float64
}

const (
	panelWidth, panelHeight = 300, 220
	left, right, top, foot  = 48, 16, 34, 44 // around the plot itself
)

// growthPlot draws the curves: processor time in the first line, bytes of WAL in the second.
func growthPlot(curves []curve) string {
	lines := make([][]panel, 2)
	for _, c := range curves {
		x, time, bytes := make([]float64, len(c.points)), make([]float64, len(c.points)), make([]float64, len(c.points))
		for i, p := range c.points {
			x[i], time[i], bytes[i] = float64(p.x), float64(p.cost.processor)/1e3, p.cost.bytes
		}
		lines[0] = append(lines[0], panel{"server's processor time, µs a heartbeat", c.axis, x, time})
		if c.name != "crowd" {
			lines[1] = append(lines[1], panel{"WAL, bytes a heartbeat", c.axis, x, bytes})
		}
	}
	return plot(lines)
}

// plot writes lines of panels as SVG.
func plot(lines [][]panel) string {
	columns := 0
	for _, line := range lines {
		columns = max(columns, len(line))
	}
	var b strings.Builder
	width, height := columns*panelWidth, len(lines)*panelHeight
	fmt.Fprintf(
		&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="10">`+"\n",
		width, height, width, height,
	)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for row, line := range lines {
		for column, p := range line {
			fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", column*panelWidth, row*panelHeight)
			p.draw(&b)
			b.WriteString("</g>\n")
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (p panel) draw(b *strings.Builder) {
	if len(p.x) == 0 {
		return
	}
	low, high := math.Log(p.x[0]), math.Log(p.x[len(p.x)-1])
	if high == low {
		high++
	}
	most := 0.0
	for _, y := range p.y {
		most = max(most, y)
	}
	step := niceStep(most)
	ceiling := max(step, math.Ceil(most/step)*step)
	atX := func(x float64) float64 {
		return left + (math.Log(x)-low)/(high-low)*(panelWidth-left-right)
	}
	atY := func(y float64) float64 { return panelHeight - foot - y/ceiling*(panelHeight-top-foot) }

	fmt.Fprintf(b, `<text x="%d" y="18" font-weight="bold">%s</text>`+"\n", left, html.EscapeString(p.title))
	for y := 0.0; y <= ceiling+step/2; y += step {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`, left, panelWidth-right, atY(y), atY(y))
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left-6, atY(y)+3, significant(y))
	}
	var path []string
	for i, x := range p.x {
		path = append(path, fmt.Sprintf("%.1f,%.1f", atX(x), atY(p.y[i])))
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, atX(x), panelHeight-foot+16, significant(x))
		fmt.Fprintf(
			b, `<circle cx="%.1f" cy="%.1f" r="3" fill="#1f6f8b"><title>%s: %s</title></circle>`+"\n", atX(x), atY(p.y[i]), significant(x),
			significant(p.y[i]),
		)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="#1f6f8b" stroke-width="1.5"/>`+"\n", strings.Join(path, " "))
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle" fill="#555">%s</text>`+"\n", (left+panelWidth-right)/2, panelHeight-10, html.EscapeString(p.axis))
}

// niceStep is a distance of grid lines of which some four cover the height.
func niceStep(most float64) float64 {
	if most <= 0 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{0.2, 0.25, 0.5} {
		if most/(step*part) <= 6 {
			return step * part
		}
	}
	return step
}
