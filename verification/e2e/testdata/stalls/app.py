"""An API that writes down when its program reads a request, and answers as its environment says:

IMPORT=3        takes so many seconds to start
NTH=75,3        each 75th request takes 3 s
EACH=8          each request takes so many seconds
TRICKLE=0.5,20  each request of the first 20 s takes 0.5 s, then none takes any
"""
import os, time

record = os.open(os.environ["ARRIVALS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
time.sleep(float(os.environ.get("IMPORT", "0")))
nth, nth_takes = (float(x) for x in os.environ.get("NTH", "0,0").split(","))
trickle, trickles_for = (float(x) for x in os.environ.get("TRICKLE", "0,0").split(","))
requests, first = 0, None


def app(environ, start_response):
    global requests, first
    now = time.time_ns()
    os.write(record, b"%d\n" % now)
    requests, first = requests + 1, first or now
    takes = float(os.environ.get("EACH", "0.005"))
    if nth and requests % nth == 0:
        takes = nth_takes
    if now - first < trickles_for * 1e9:
        takes = trickle
    time.sleep(takes)
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
