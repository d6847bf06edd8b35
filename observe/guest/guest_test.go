package guest

import (
	"testing"

	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/kernel"
	"glasshouse/observe/observetest"
)

func TestMain(m *testing.M) { observetest.Main(m) }

// A hostMachine is a jail on the host with the recorder of a virtual machine.
type hostMachine struct {
	*observetest.FakeJail
	*machine
}

func (m hostMachine) Target(s event.Selection) observe.Target {
	t := m.target("1", "1")
	t.Selection = s
	return t
}

func TestContract(t *testing.T) {
	observetest.Run(t, observetest.Suite{
		Open: func(*testing.T) observe.Source { return New(Config{}) },
		Jail: func(t *testing.T) observetest.Jail {
			m := hostMachine{observetest.NewFakeJail(t), newMachine(t, kernel.New(kernel.Config{}), bufferSize)}
			m.rec.SetTarget(m.FakeJail.Target(event.Selection{}))
			return m
		},
		Pinned: true, // by the recorder
		Differs: map[string]string{
			"WhatGlasshouseDoesIsMarked": "a checkpoint of a machine executes nothing in its processes",
		},
	})
}
