// The other side in Go, with the reference implementation of notes and tiles: golang.org/x/mod/sumdb/note and sumdb/tlog.
//
// Reads one JSON object per line from standard input and answers each with {"accepted": true} or {"accepted": false, "error": ...}:
//
//	{"do": "note", "note": hex, "vkey": text}                          opens a signed note under one key
//	{"do": "inclusion", "leaf": hex, "index": n, "size": n, "proof": [hex], "root": hex}
//	{"do": "consistency", "old": n, "size": n, "proof": [hex], "old_root": hex, "root": hex}
//	{"do": "tiles", "directory": text, "size": n, "root": hex}         every hash of an export, read as tiles of height 8
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type request struct {
	Do, Note, Vkey, Leaf, Root, Directory string
	OldRoot                               string `json:"old_root"`
	Proof                                 []string
	Index, Size, Old                      int64
}

func bytesOf(text string) []byte {
	data, err := hex.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return data
}

func hashOf(text string) (hash tlog.Hash) {
	if copy(hash[:], bytesOf(text)) != len(hash) {
		panic("a hash of another length")
	}
	return hash
}

func hashesOf(texts []string) (hashes []tlog.Hash) {
	for _, text := range texts {
		hashes = append(hashes, hashOf(text))
	}
	return hashes
}

func openNote(asked request) error {
	verifier, err := note.NewVerifier(asked.Vkey)
	if err != nil {
		return err
	}
	_, err = note.Open(bytesOf(asked.Note), note.VerifierList(verifier))
	return err
}

// directory reads tiles of an export: C2SP tlog-tiles leaves the height out of the names that sumdb gives them.
type directory struct{ base string }

func (d directory) Height() int                       { return 8 }
func (d directory) SaveTiles([]tlog.Tile, [][]byte) {}
func (d directory) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var read [][]byte
	for _, tile := range tiles {
		data, err := os.ReadFile(filepath.Join(d.base, strings.Replace(tile.Path(), "tile/8/", "tile/", 1)))
		if err != nil {
			return nil, err
		}
		read = append(read, data)
	}
	return read, nil
}

func readTiles(asked request) error {
	root := hashOf(asked.Root)
	reader := tlog.TileHashReader(tlog.Tree{N: asked.Size, Hash: root}, directory{asked.Directory})
	for index := int64(0); index < asked.Size; index++ {
		if _, err := reader.ReadHashes([]int64{tlog.StoredHashIndex(0, index)}); err != nil {
			return fmt.Errorf("leaf %d: %w", index, err)
		}
	}
	found, err := tlog.TreeHash(asked.Size, reader)
	if err == nil && found != root {
		err = errors.New("another root")
	}
	return err
}

func answer(asked request) error {
	switch asked.Do {
	case "note":
		return openNote(asked)
	case "inclusion":
		leaf := tlog.RecordHash(bytesOf(asked.Leaf))
		return tlog.CheckRecord(tlog.RecordProof(hashesOf(asked.Proof)), asked.Size, hashOf(asked.Root), asked.Index, leaf)
	case "consistency":
		proof := tlog.TreeProof(hashesOf(asked.Proof))
		return tlog.CheckTree(proof, asked.Size, hashOf(asked.Root), asked.Old, hashOf(asked.OldRoot))
	case "tiles":
		return readTiles(asked)
	}
	return fmt.Errorf("what is %q?", asked.Do)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		told := map[string]any{"accepted": true}
		if err := answer(asked); err != nil {
			told = map[string]any{"accepted": false, "error": err.Error()}
		}
		written, err := json.Marshal(told)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(written))
	}
}
