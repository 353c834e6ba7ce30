package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pems are files of an authority, and of what it has signed for a server and a client.
type pems struct{ authority, server, serverKey, client, clientKey string }

// certificates makes them, in a folder.
func certificates(dir string) (p pems, err error) {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return p, err
	}
	if p.authority, err = certificate(dir, "authority", authority, authority, key, key); err != nil {
		return p, err
	}
	signed := func(name string, serial int64, use x509.ExtKeyUsage) (cert, keyFile string, err error) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return "", "", err
		}
		cert, err = certificate(dir, name, &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotAfter: authority.NotAfter,
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use},
		}, authority, own, key)
		if err != nil {
			return "", "", err
		}
		der, err := x509.MarshalECPrivateKey(own)
		if err != nil {
			return "", "", err
		}
		keyFile, err = ownFile(dir, name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
		return cert, keyFile, err
	}
	var err2 error
	p.server, p.serverKey, err = signed("server", 2, x509.ExtKeyUsageServerAuth)
	p.client, p.clientKey, err2 = signed("client", 3, x509.ExtKeyUsageClientAuth)
	return p, errors.Join(err, err2)
}

// certificate writes a certificate of own's public key, which key signs.
func certificate(dir, name string, template, by *x509.Certificate, own, key *ecdsa.PrivateKey) (string, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, by, &own.PublicKey, key)
	if err != nil {
		return "", err
	}
	return ownFile(dir, name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
}

// ownFile writes a file for this user.
func ownFile(dir, name, text string) (string, error) {
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}
