package metrics

import (
	"fmt"
	"strings"
)

var escape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// Text returns samples in the text format of Prometheus, without histograms. The samples of a
// metric follow each other.
func Text(samples []Sample) []byte {
	var text []byte
	var last *Metric
	for _, s := range samples {
		name := s.Prometheus()
		if s.Metric != last {
			kind := "gauge"
			if s.Kind == Counter {
				kind = "counter"
			}
			text = fmt.Appendf(text, "# HELP %s %s\n# TYPE %s %s\n", name, s.Help, name, kind)
			last = s.Metric
		}
		var labels []string
		for i, label := range s.Metric.Labels {
			value := escape.Replace(strings.ToValidUTF8(s.Labels[i], "�"))
			labels = append(labels, fmt.Sprintf(`%s="%s"`, label, value))
		}
		if len(labels) > 0 {
			name += "{" + strings.Join(labels, ",") + "}"
		}
		text = fmt.Appendf(text, "%s %v\n", name, s.Value)
	}
	return text
}
