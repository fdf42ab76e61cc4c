//go:build race

package proof_test

const raceDetector = true
