// Package schedule has rules that say when something ticks: at times of the clocks of a zone, or at intervals.
package schedule
