//go:build race

package jailinit_test

const raceDetector = true
