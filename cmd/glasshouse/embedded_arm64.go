package main

import "embed"

//go:embed all:embedded/arm64
var embedded embed.FS
