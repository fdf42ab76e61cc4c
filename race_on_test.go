//go:build race

package pgleases_test

const raceDetector = true
