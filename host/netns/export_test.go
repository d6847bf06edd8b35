package netns

var Lock = lock
